"""The Hera template of the verdict."""

from functools import cache

from hera.workflows import Container

from everstep.steps.template import StepTask, step_task, step_template
from everstep.steps.verdict.config import Config


@cache
def template() -> Container:
    """Outputs: `verdict`, and the page as an artifact."""
    return step_template(
        "verdict",
        Config,
        title="Verdict",
        description="What each fault cost, compared with an undisturbed training.",
        outputs=("verdict",),
        artifacts=("drill.html",),
        fixed_values={"uid": "{{workflow.uid}}"},
        memory="4Gi",
    )


def task(name: str = "verdict", **arguments: object) -> StepTask:
    """A task with the output `verdict` (one line) and the artifact `drill`."""
    return step_task(template(), name, arguments)
