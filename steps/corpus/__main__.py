"""`python -m steps.corpus --source 'texts/*.jsonl'`"""

from steps.corpus.config import Config
from steps.corpus.run import run
from steps.entry import main

if __name__ == "__main__":
    main("corpus", Config, run)
