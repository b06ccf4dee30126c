"""`python -m everstep.steps.model --model smollm2`"""

from everstep.steps.entry import main
from everstep.steps.model.config import Config
from everstep.steps.model.run import run

if __name__ == "__main__":
    main("model", Config, run)
