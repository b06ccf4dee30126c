"""Steps of your own between Everstep's: corpus -> PLAN -> train once over the text -> evaluate -> JUDGE -> PUBLISH."""

from dataclasses import dataclass

from hera.workflows import DAG, Workflow, script

import everstep
from everstep.steps import corpus, evaluate, preprocess, report, train


@dataclass(frozen=True)
class Config:
    """Each field is a flag of this file and a parameter of the workflow."""

    corpus: str = ""
    """Comma separated paths, globs and s3:// addresses of text; empty: the text that comes with Python."""
    most_iterations: int = 100
    """Optimizer steps at most, however much text there is."""
    limit: float = 2000.0
    """A model with a higher perplexity is not published."""

    def check(self) -> None:
        """Raise for input that no step could use, before anything starts."""
        corpus.Config(source=self.corpus).check()
        train.Config(iterations=self.most_iterations).check()


@script(image="python:3.11-slim")
def plan(documents: int, most: int):  # These run in pods of their own: they see nothing of this file.
    """Print the number of iterations: one for each document."""
    print(min(documents, most))


@script(image="python:3.11-slim")
def judge(perplexity: float, limit: float):
    """Print whether the model is good enough."""
    print("good" if perplexity <= limit else "bad")


@script(image="python:3.11-slim")
def publish(model: str):
    """Print where the model is; yours would copy it to the server."""
    print(f"published {model}")


def build(config: Config) -> Workflow:
    """The workflow; the same object runs locally and on Argo."""
    with Workflow(generate_name="own-steps-", entrypoint="main", arguments=everstep.parameters(config)) as workflow:
        with DAG(name="main"):
            text = corpus.task(source=everstep.parameter("corpus"))
            tokens = preprocess.task("tokenize", input=text.uri)
            plan_task = plan(arguments={"documents": text.documents, "most": everstep.parameter("most_iterations")})
            training = train.task(dataset=tokens.uri, nodes=1, iterations=plan_task.result)
            score = evaluate.task(checkpoint=training.checkpoint, validation=tokens.validation)
            verdict = judge(arguments={"perplexity": score.perplexity, "limit": everstep.parameter("limit")})
            publication = publish(arguments={"model": score.model}, when=f"{verdict.result} == good")
            text >> [tokens, plan_task] >> training >> score >> verdict >> publication
        report.on_exit(workflow)
    return workflow


if __name__ == "__main__":
    everstep.submit(build, Config)
