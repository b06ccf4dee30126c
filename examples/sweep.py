"""Try learning rates, stop most of them early by their loss: tokens -> try -> keep -> train -> best -> evaluate."""

from dataclasses import dataclass

from hera.workflows import DAG, Workflow, script

import everstep
from everstep.errors import BadInput
from everstep.steps import corpus, evaluate, preprocess, report, train


@dataclass(frozen=True)
class Config:
    """Each field is a flag of this file and a parameter of the workflow."""

    corpus: str = ""
    """Comma separated paths, globs and s3:// addresses of text; empty: the text that comes with Python."""
    rates: str = "1e-3,3e-3,1e-2"
    """Learning rates to compare."""
    try_iterations: int = 25
    """Optimizer steps with each rate, after which most are given up."""
    keep: int = 2
    """Rates, those with the lowest losses, that are trained in full."""
    iterations: int = 100
    """Optimizer steps of a full training."""
    warmup: int = 5
    """Of these, steps of linear warm-up."""
    seed: int = 0
    """Decides the random weights and the order of the data."""
    parallelism: int = 1
    """Steps that run at the same time."""

    def check(self) -> None:
        """Raise for input that no step could use, before anything starts."""
        corpus.Config(source=self.corpus).check()
        if self.keep < 1:
            raise BadInput(f"--keep {self.keep}: at least 1 rate must be trained in full")
        if self.try_iterations > self.iterations:
            raise BadInput(
                f"--try-iterations {self.try_iterations}: more than --iterations {self.iterations}; lower it"
            )
        for rate in self.each_rate():
            train.Config(
                learning_rate=float(rate), iterations=self.try_iterations, warmup=self.warmup, seed=self.seed
            ).check()

    def each_rate(self) -> list[str]:
        """The rates as they are written. Raises BadInput."""
        rates = [rate.strip() for rate in self.rates.split(",")]
        try:
            numbers = {float(rate) for rate in rates}
        except ValueError:
            raise BadInput(f"--rates {self.rates}: give numbers, like 1e-3,3e-3") from None
        if len(numbers) < len(rates):
            raise BadInput(f"--rates {self.rates}: give each rate once")
        return rates


@script(image="python:3.11-slim")
def keep_best(rates: str, losses: list, keep: int):  # Runs in a pod of its own: it sees nothing of this file.
    """Print the rates of the lowest losses, as JSON."""
    import json

    tried = [rate.strip() for rate in str(rates).split(",")]  # A single rate arrives as a number.
    pairs = sorted(zip(map(float, losses), tried, strict=True))
    print(json.dumps([rate for loss, rate in pairs if loss == loss][:keep]))  # A loss may be no number.


@script(image="python:3.11-slim")
def choose(checkpoints: list, losses: list):
    """Print the checkpoint of the lowest loss."""
    print(min(zip(map(float, losses), checkpoints, strict=True))[1])


def build(config: Config) -> Workflow:
    """The workflow; the same object runs locally and on Argo."""
    with Workflow(
        generate_name="sweep-",
        entrypoint="main",
        arguments=everstep.parameters(config),
        parallelism=config.parallelism,
    ) as workflow:
        with DAG(name="main"):
            text = corpus.task(source=everstep.parameter("corpus"))
            tokens = preprocess.task("tokenize", input=text.uri)
            settings = {
                "dataset": tokens.uri,
                "nodes": 1,
                "warmup": everstep.parameter("warmup"),
                "seed": everstep.parameter("seed"),
            }
            # One job for each rate, named by `task`.
            trials = train.task(
                "try",
                task="try-{{item}}",
                learning_rate="{{item}}",
                iterations=everstep.parameter("try_iterations"),
                **settings,
            )
            trials.with_items = config.each_rate()
            keeping = keep_best(
                name="keep",
                arguments={
                    "rates": everstep.parameter("rates"),
                    "losses": trials.loss,
                    "keep": everstep.parameter("keep"),
                },
            )
            training = train.task(
                task="rate-{{item}}", learning_rate="{{item}}", iterations=everstep.parameter("iterations"), **settings
            )
            training.with_param = keeping.result
            best = choose(name="best", arguments={"checkpoints": training.checkpoint, "losses": training.loss})
            score = evaluate.task(checkpoint=best.result, validation=tokens.validation)
            text >> tokens >> trials >> keeping >> training >> best >> score
        report.on_exit(workflow)
    return workflow


if __name__ == "__main__":
    everstep.submit(build, Config)
