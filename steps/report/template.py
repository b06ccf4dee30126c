"""The report as an exit handler: its arguments contain Argo's variables of the ended workflow."""

from functools import cache

from hera.workflows import Container, Workflow

from everstep.steps.report.config import Config
from everstep.steps.template import step_template


@cache
def template() -> Container:
    """The template. It has no inputs: an exit handler is called without arguments."""
    return step_template(
        "report",
        Config,
        title="Report",
        description="What the run did: steps, curves, restarts, where each second went",
        artifacts=("report.html",),
        fixed={
            "task": "report",
            "uid": "{{workflow.uid}}",
            "status": "{{workflow.status}}",
            "failures": "{{workflow.failures}}",
            "duration": "{{workflow.duration}}",
        },
        memory="1Gi",
    )


def on_exit(workflow: Workflow) -> None:
    """Let the workflow end with its report, whatever happens. Call it inside `with Workflow(...)`."""
    handler = template()
    if handler not in workflow.templates:
        workflow.templates.append(handler)
    workflow.on_exit = handler.name
