"""The model step as an Argo template."""

from functools import cache

from hera.workflows import Container

from everstep.steps.model.config import Config
from everstep.steps.template import StepTask, step_task, step_template


@cache
def template() -> Container:
    """Outputs: `uri` of the model (or `tiny`), its `tokenizer` (empty: none of its own)."""
    return step_template(
        "model",
        Config,
        title="Model",
        description="Puts the weights that training begins with into the store, once.",
        outputs=("uri", "tokenizer"),
        cpu=1,
        memory="4Gi",
    )


def task(name: str = "model", **arguments: object) -> StepTask:
    """A task with the outputs `uri` (of a Hugging Face directory, or `tiny`) and `tokenizer` (of its tokenizer)."""
    return step_task(template(), name, arguments)
