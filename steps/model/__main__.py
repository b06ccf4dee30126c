"""`python -m steps.model --model smollm2`"""

from steps.entry import main
from steps.model.config import Config
from steps.model.run import run

if __name__ == "__main__":
    main("model", Config, run)
