"""`python -m steps.check --nodes 2`."""

from steps.check.config import Config
from steps.check.run import run
from steps.entry import main

if __name__ == "__main__":
    main("check", Config, run)
