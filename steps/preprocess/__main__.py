"""`python -m everstep.steps.preprocess --input runs/store/corpora/...`; spark-submit runs this file too."""

from everstep.steps.entry import main
from everstep.steps.preprocess.arguments import parse
from everstep.steps.preprocess.config import Config
from everstep.steps.preprocess.run import run

if __name__ == "__main__":
    main("preprocess", Config, run, parse)
