"""The Hera template of an injected fault."""

from functools import cache

from hera.workflows import Container

from everstep.steps.chaos.config import Config
from everstep.steps.template import StepTask, step_task, step_template


@cache
def template() -> Container:
    """Output: `fired`, JSON."""
    return step_template(
        "chaos",
        Config,
        title="Inject a fault",
        description="One fault for a training that runs beside it, at a random moment.",
        outputs=("fired",),
        fixed_values={"job": "{{workflow.uid}}-{{inputs.parameters.target}}"},
        memory="1Gi",
        account="-chaos",
    )


def task(name: str = "chaos", **arguments: object) -> StepTask:
    """A task with the output `fired`: when, to which node, and what was seen of it."""
    return step_task(template(), name, arguments)
