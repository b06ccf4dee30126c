"""`python -m steps.evaluate --checkpoint URI --validation URI#validation`."""

from steps.entry import main
from steps.evaluate.config import Config
from steps.evaluate.run import run

if __name__ == "__main__":
    main("evaluate", Config, run)
