"""The Hera template of the node check."""

from functools import cache

from hera.workflows import Container

from everstep.steps.check.config import Config
from everstep.steps.template import StepTask, step_task, step_template


@cache
def template() -> Container:
    """Outputs: `avoid_hosts`, `host_order`, and the verdict as an artifact."""
    return step_template(
        "check",
        Config,
        title="Check the nodes",
        description="Rounds of matrix products and all-reduces in small groups; names machines for training to avoid.",
        outputs=("avoid_hosts", "host_order"),
        artifacts=("verdict.json",),
        cpu=1,
        memory="2Gi",
        deadline_s=1800,
        account="-train",
    )


def task(name: str = "check", **arguments: object) -> StepTask:
    """A task with the outputs `avoid_hosts` and `host_order` (JSON lists of machines) and the artifact `verdict`."""
    return step_task(template(), name, arguments)
