"""`python -m everstep.steps.chaos --kind crash --job JOB`."""

from everstep.steps.chaos.config import Config
from everstep.steps.chaos.run import run
from everstep.steps.entry import main

if __name__ == "__main__":
    main("chaos", Config, run)
