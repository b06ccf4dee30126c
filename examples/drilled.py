"""A chaos drill before a step of your own: corpus -> tokenize -> train with faults -> verdict -> RELEASE.

Your step runs only if the drill holds: each fault that can be injected here fired, and none cost more than its limit.
"""

from dataclasses import dataclass
from typing import Annotated

from hera.workflows import DAG, Workflow, script

import everstep
from everstep.steps import corpus, preprocess
from everstep.steps.chaos.drill import check_names, drill


@dataclass(frozen=True)
class Config:
    """Each field is a flag of this file and a parameter of the workflow."""

    corpus: Annotated[str, everstep.LocalFile.TEXT] = ""
    """Comma separated paths, globs and s3:// addresses of text; empty: the text that comes with Python."""
    only: str = "process-crash,master-lost"
    """Comma separated names of experiments; empty: all. They are listed in steps/chaos/drill.py."""
    script: Annotated[str, everstep.LocalFile.SCRIPT] = ""
    """Your own training script instead of steps/train/llama.py."""
    nodes: int = 2
    """Nodes that train together."""
    iterations: int = 60
    """Optimizer steps of each training."""

    def check(self) -> None:
        """Raise for input that no step could use, before anything starts."""
        corpus.Config(source=self.corpus).check()
        check_names(self.only)


@script(image="python:3.11-slim")
def release(verdict: str):  # It runs in a pod of its own: it sees nothing of this file.
    """Print what the drill showed; yours would start the long training, or tag the image for production."""
    print(f"released: {verdict}")


def build(config: Config) -> Workflow:
    """The workflow; the same object runs locally and on Argo."""
    with (
        Workflow(generate_name="drilled-", entrypoint="main", arguments=everstep.parameters(config)) as workflow,
        DAG(name="main", fail_fast=False),
    ):
        text = corpus.task(source=everstep.parameter("corpus"))
        tokens = preprocess.task("tokenize", input=text.uri)
        text >> tokens
        verdict = drill(
            after=tokens,
            only=config.only,
            nodes=config.nodes,
            iterations=config.iterations,
            dataset=tokens.uri,
            script=everstep.parameter("script"),
        )
        released = release(arguments={"verdict": verdict.verdict})
        verdict >> released
    return workflow


if __name__ == "__main__":
    everstep.submit(build, Config)
