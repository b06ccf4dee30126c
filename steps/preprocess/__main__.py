"""`python -m steps.preprocess --input runs/store/corpora/...`"""

from steps.entry import main
from steps.preprocess.config import Config
from steps.preprocess.run import run

if __name__ == "__main__":
    main("preprocess", Config, run)
