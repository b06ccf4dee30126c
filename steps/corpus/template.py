"""The corpus step as an Argo template."""

from functools import cache

from hera.workflows import Container

from everstep.steps.corpus.config import Config
from everstep.steps.template import StepTask, step_task, step_template


@cache
def template() -> Container:
    """Outputs: `uri` of the corpus, its number of `documents`."""
    return step_template(
        "corpus",
        Config,
        title="Corpus",
        description="Collects text, drops duplicates, holds out a share for evaluation.",
        outputs=("uri", "documents"),
        cpu=1,
        memory="1Gi",
    )


def task(name: str = "corpus", **arguments: object) -> StepTask:
    """A task with the outputs `uri` (of the text in the store) and `documents` (their number)."""
    return step_task(template(), name, arguments)
