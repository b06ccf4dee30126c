"""`python -m everstep.steps.evaluate --checkpoint URI --validation URI#validation`."""

from everstep.steps.entry import main
from everstep.steps.evaluate.config import Config
from everstep.steps.evaluate.run import run

if __name__ == "__main__":
    main("evaluate", Config, run)
