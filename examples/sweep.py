"""Train once for each learning rate, side by side, and name the best: tokens -> train and evaluate per rate -> best."""

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
    iterations: int = 100
    """Optimizer steps of each training."""
    parallelism: int = 1
    """Steps that run at the same time."""

    def check(self) -> None:
        """Raise for input that no step could use, before anything starts."""
        corpus.Config(source=self.corpus).check()
        try:
            rates = [float(rate) for rate in self.rates.split(",")]
        except ValueError:
            raise BadInput(f"--rates {self.rates}: give numbers, like 1e-3,3e-3") from None
        for rate in rates:
            train.Config(learning_rate=rate, iterations=self.iterations).check()


@script(image="python:3.11-slim")
def choose(rates: str, scores: list, models: list):  # Runs in a pod of its own: it sees nothing of this file.
    """Print the rate of the lowest perplexity."""
    score, rate, model = min(zip(map(float, scores), rates.split(","), models, strict=True))
    print(f"best learning rate {rate}: perplexity {score:.1f}, model {model}")


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
            text >> tokens
            scores = []
            for number, rate in enumerate(config.rates.split(",")):
                trained = train.task(
                    f"train-{number}",
                    dataset=tokens.uri,
                    nodes=1,
                    learning_rate=rate,
                    iterations=everstep.parameter("iterations"),
                )
                score = evaluate.task(f"evaluate-{number}", checkpoint=trained.checkpoint, validation=tokens.validation)
                tokens >> trained >> score
                scores.append(score)
            best = choose(
                name="best",
                arguments={
                    "rates": everstep.parameter("rates"),
                    "scores": [score.perplexity for score in scores],
                    "models": [score.model for score in scores],
                },
            )
            for score in scores:
                score >> best
        report.on_exit(workflow)
    return workflow


if __name__ == "__main__":
    everstep.submit(build, Config)
