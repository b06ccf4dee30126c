"""`python -m everstep.steps.train --dataset URI`."""

from everstep.steps.entry import main
from everstep.steps.train.config import Config
from everstep.steps.train.run import run

STORE_PATIENCE_S = 300.0
"""As long as the nodes of a killed step train on without one, by default."""

if __name__ == "__main__":
    main("train", Config, run, patience_s=STORE_PATIENCE_S)
