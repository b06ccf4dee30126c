"""`python -m everstep.steps.corpus --source 'texts/*.jsonl'`"""

from everstep.steps.corpus.config import Config
from everstep.steps.corpus.run import run
from everstep.steps.entry import main

if __name__ == "__main__":
    main("corpus", Config, run)
