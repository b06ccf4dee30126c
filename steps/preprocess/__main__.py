"""`python -m steps.preprocess --input runs/store/corpora/...`; spark-submit runs this file too."""

from steps.entry import main
from steps.preprocess.arguments import parse
from steps.preprocess.config import Config
from steps.preprocess.run import run

if __name__ == "__main__":
    main("preprocess", Config, run, parse)
