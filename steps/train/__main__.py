"""`python -m steps.train --dataset URI`."""

from steps.entry import main
from steps.train.config import Config
from steps.train.run import run

if __name__ == "__main__":
    main("train", Config, run)
