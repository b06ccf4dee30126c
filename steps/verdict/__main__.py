"""`python -m everstep.steps.verdict --uid UID --experiments '[...]'`."""

from everstep.steps.entry import main
from everstep.steps.verdict.config import Config
from everstep.steps.verdict.run import run

if __name__ == "__main__":
    main("verdict", Config, run)
