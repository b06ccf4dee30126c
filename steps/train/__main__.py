"""`python -m everstep.steps.train --dataset URI`."""

from everstep.steps.entry import main
from everstep.steps.train.config import Config
from everstep.steps.train.run import run

if __name__ == "__main__":
    main("train", Config, run)
