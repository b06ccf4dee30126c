"""What `argo retry` writes into a Workflow, for clusters without an Argo Server that would work it out. Pure.

After "FormulateRetryWorkflow" of Argo's workflow/util: steps that failed and all that follows them are forgotten, the
groups that they are part of run again, and the exit handler has yet to come.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from everstep.runtime.submission.tree import rows, workflow_nodes
from everstep.runtime.workflow.engine.nodes import NodeType, Phase

LABEL = "workflows.argoproj.io"
OVER_LABELS = (f"{LABEL}/completed", f"{LABEL}/workflow-archiving-status")
"""Of a Workflow that has ended: the controller looks at it no more."""
EXECUTIONS = (NodeType.POD, NodeType.CONTAINER, NodeType.HTTP, "Plugin")
GROUPS = (NodeType.DAG, NodeType.TASK_GROUP, NodeType.STEPS, NodeType.STEP_GROUP, NodeType.RETRY)
BAD = (Phase.FAILED, Phase.ERROR)
Nodes = Mapping[str, Mapping[str, Any]]


def formulate(workflow: Mapping[str, Any], now: str) -> tuple[dict[str, Any], set[str]]:
    """(JSON merge patch, names of the pods to delete before it) of a failed Workflow. `now`: as Argo writes a time."""
    nodes = workflow_nodes(workflow)
    handler = f"{workflow['metadata']['name']}.onExit"
    forgotten = _descendants(nodes, (key for key, node in nodes.items() if node["name"].startswith(handler)))
    repeated = _descendants(nodes, _failures(nodes)) - forgotten
    forgotten |= repeated
    reset = _groups_above(nodes, repeated) - forgotten
    changes: dict[str, Any] = dict.fromkeys(forgotten)
    for key in nodes.keys() - forgotten:
        change = {
            field: [child for child in nodes[key][field] if child not in forgotten]
            for field in ("children", "outboundNodes")
            if not forgotten.isdisjoint(nodes[key].get(field) or ())
        }
        if key in reset:
            change |= {"phase": Phase.RUNNING.value, "message": None, "startedAt": now, "finishedAt": None}
        if change:
            changes[key] = change
    pods = {row.pod for row in rows(workflow) if row.pod and row.id in forgotten}
    return _change_of_workflow(workflow, changes, now), pods


def _change_of_workflow(workflow: Mapping[str, Any], nodes: Mapping[str, Any], now: str) -> dict[str, Any]:
    """The patch; it holds for this version of the Workflow only."""
    status = workflow["status"]
    conditions = [
        {**condition, "status": "False"} if condition.get("type") == "Completed" else condition
        for condition in status.get("conditions") or ()
    ]
    ended = ("phase", "message", "finishedAt", "persistentVolumeClaims")
    change = {**dict.fromkeys(ended), "startedAt": now, "conditions": conditions, "nodes": dict(nodes)}
    if "storedWorkflowTemplateSpec" in status:
        change["storedWorkflowTemplateSpec"] = {"shutdown": None}
    spec: dict[str, Any] = {"shutdown": None}
    if workflow["spec"].get("activeDeadlineSeconds") == 0:  # It was terminated.
        spec["activeDeadlineSeconds"] = None
    metadata = {"resourceVersion": workflow["metadata"]["resourceVersion"], "labels": dict.fromkeys(OVER_LABELS)}
    return {"metadata": metadata, "spec": spec, "status": change}


def _failures(nodes: Nodes) -> set[str]:
    """What ran and failed, unless something that came of it has succeeded: a later try, a task that goes on anyway."""
    parents = _parents(nodes)
    failures = set()
    for key, node in nodes.items():
        if node["type"] in EXECUTIONS and node.get("phase") in BAD:
            is_try = (node.get("nodeFlag") or {}).get("retried") and key in parents
            start = parents[key] if is_try else key
            later = _descendants(nodes, [start]) - {start}
            if not any(nodes[successor].get("phase") == Phase.SUCCEEDED for successor in later):
                failures.add(key)
    return failures


def _groups_above(nodes: Nodes, keys: Iterable[str]) -> set[str]:
    """The groups that these nodes are in, and the failed groups before them."""
    parents, groups = _parents(nodes), set[str]()
    for key in keys:
        boundary = nodes[key].get("boundaryID") or ""
        while boundary in nodes and boundary not in groups:
            groups.add(boundary)
            boundary = nodes[boundary].get("boundaryID") or ""
        above = parents.get(key, "")
        while above:
            if nodes[above]["type"] in GROUPS and nodes[above].get("phase") in BAD:
                groups.add(above)
            above = parents.get(above, "")
    return groups


def _parents(nodes: Nodes) -> dict[str, str]:
    """One parent of each node that has any."""
    return {child: key for key, node in nodes.items() for child in node.get("children") or () if child in nodes}


def _descendants(nodes: Nodes, roots: Iterable[str]) -> set[str]:
    """These nodes and all below them."""
    members, waiting = set[str](), list(roots)
    while waiting:
        if (key := waiting.pop()) not in members and key in nodes:
            members.add(key)
            waiting += nodes[key].get("children") or ()
    return members
