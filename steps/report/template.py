"""The report as an exit handler: its arguments contain Argo's variables of the ended workflow, and its graph."""

import json
import re
from functools import cache

from hera.workflows import DAG, Container, Task, Workflow

from everstep.steps.report.config import Config
from everstep.steps.template import step_template

MOST_TASKS = 200
"""A graph with more of them is not drawn."""


@cache
def template(graph: str = "") -> Container:
    """The template. It has no inputs: an exit handler is called without arguments."""
    return step_template(
        "report",
        Config,
        title="Report",
        description="What the run did: steps, curves, restarts, where each second went",
        artifacts=("report.html",),
        fixed_values={
            "task": "report",
            "uid": "{{workflow.uid}}",
            "status": "{{workflow.status}}",
            "failures": "{{workflow.failures}}",
            "duration": "{{workflow.duration}}",
            "graph": graph,
        },
        memory="1Gi",
    )


def on_exit(workflow: Workflow) -> None:
    """Let the workflow end with its report, whatever happens. Call it inside `with Workflow(...)`, after its DAG.

    On a cluster the report's pod may not read the workflow, so it receives the order of its tasks. The handler's
    template has the artifact `report`.
    """
    handler = template(graph_of(workflow))
    if handler.name not in {getattr(listed, "name", None) for listed in workflow.templates}:
        workflow.templates.append(handler)
    workflow.on_exit = handler.name


def graph_of(workflow: Workflow) -> str:
    """JSON: the tasks that each task of the entrypoint's DAG follows; empty without a DAG, or for too large a one."""
    entry = next((listed for listed in workflow.templates if getattr(listed, "name", "") == workflow.entrypoint), None)
    tasks = [task for task in entry.tasks if isinstance(task, Task)] if isinstance(entry, DAG) else []
    if not 0 < len(tasks) <= MOST_TASKS:
        return ""
    names = {task.name for task in tasks}
    follows = {}
    for task in tasks:
        words = [*re.findall(r"[A-Za-z0-9_-]+", task.depends or ""), *(task.dependencies or ())]
        follows[task.name] = [word for word in dict.fromkeys(words) if word in names]
    return json.dumps(follows, separators=(",", ":"))
