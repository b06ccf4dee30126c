"""`python -m everstep.steps.check --nodes 2`."""

from everstep.steps.check.config import Config
from everstep.steps.check.run import run
from everstep.steps.entry import main

if __name__ == "__main__":
    main("check", Config, run)
