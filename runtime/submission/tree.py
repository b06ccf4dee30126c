"""The nodes of a Workflow's status as the tree that `argo get` and `argo watch` show. Pure."""

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from everstep.runtime.display.times import unix_time
from everstep.runtime.workflow.engine.nodes import NodeType, Phase, pod_name
from everstep.runtime.workflow.run.own_errors import node_message

GROUPS = {NodeType.RETRY: "(", NodeType.TASK_GROUP: "(", NodeType.STEP_GROUP: "."}
"""Nodes below which others of the same boundary stand, and what follows the group's name in theirs."""
FOLDED = (NodeType.RETRY, NodeType.STEP_GROUP)
"""Those that `argo get` knows; it shows the items of a DAG's loop beside the other tasks."""
REFUSED = "invalid spec"
"""The beginning of the message of a workflow that the controller refused."""
POD_NAMES = "workflows.argoproj.io/pod-name-format"


class Row(NamedTuple):
    """A line of the tree."""

    id: str
    branch: str
    """What is drawn before it: `├─`, `│ └─`."""
    title: str
    phase: Phase
    kind: str
    template: str
    message: str
    pod: str
    """Name of its pod; "" when it has none."""
    started: float
    finished: float
    exit_code: str

    @property
    def is_step(self) -> bool:
        """Whether a person would call it a step: it runs by itself, or is skipped."""
        return self.kind in (NodeType.POD, NodeType.SKIPPED, NodeType.SUSPEND, "HTTP", "Plugin")


def workflow_nodes(workflow: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`status.nodes`, by id; unpacked where the controller has packed them because they are many."""
    status = workflow.get("status") or {}
    if compressed := status.get("compressedNodes"):
        return json.loads(gzip.decompress(base64.b64decode(compressed)))
    return status.get("nodes") or {}


def is_offloaded(workflow: Mapping[str, Any]) -> bool:
    """Whether the nodes, because they are many, are not in the Workflow but in the controller's database."""
    return bool((workflow.get("status") or {}).get("offloadNodeStatusVersion")) and not workflow_nodes(workflow)


def rows(workflow: Mapping[str, Any]) -> list[Row]:
    """Every node, parents before children, in the order in which they started; the exit handler last."""
    nodes = workflow_nodes(workflow)
    below, old = _children_by_parent(nodes, GROUPS), _has_old_pod_names(workflow)

    def under(parent: str, indent: str, top: bool) -> Iterator[Row]:
        some = below.get(parent, [])
        for number, node in enumerate(some, 1):
            last = number == len(some)
            yield _row(node, nodes, workflow["metadata"]["name"], "" if top else indent + ("└─" if last else "├─"), old)
            yield from under(node["id"], "" if top else indent + ("  " if last else "│ "), False)

    return list(under("", "", True))


def folded_rows(workflow: Mapping[str, Any]) -> list[Row]:
    """The nodes that `argo get` shows: no groups, no retries of one attempt, nothing omitted.

    Steps that run side by side stand below one branch.
    """
    nodes = {key: node for key, node in workflow_nodes(workflow).items() if node.get("phase") != Phase.OMITTED}
    below, old = _children_by_parent(nodes, {kind: GROUPS[kind] for kind in FOLDED}), _has_old_pod_names(workflow)

    def under(node: Mapping[str, Any], branch: str, indent: str) -> Iterator[Row]:
        some = below.get(node["id"], [])
        group = node["type"] == NodeType.STEP_GROUP
        is_hidden = group or (node["type"] == NodeType.RETRY and len(node.get("children") or ()) == 1)
        if not is_hidden:
            yield _row(node, nodes, workflow["metadata"]["name"], branch, old)
        for number, child in enumerate(some):
            last = number == len(some) - 1
            part, more = ("└─", "  ") if last else ("├─", "│ ")
            if is_hidden and number == 0:
                part = "" if not group else "──" if last else "┬─"
            more = more if group or not is_hidden else ""
            yield from under(child, (branch if is_hidden and number == 0 else indent) + part, indent + more)

    return [row for root in below.get("", []) for row in under(root, "", "")]


def _has_old_pod_names(workflow: Mapping[str, Any]) -> bool:
    return (workflow["metadata"].get("annotations") or {}).get(POD_NAMES) == "v1"


def _children_by_parent(
    nodes: Mapping[str, Mapping[str, Any]], groups: Mapping[NodeType, str]
) -> dict[str, list[dict[str, Any]]]:
    """The nodes that stand below each, in the order in which they started; items of a loop in theirs."""
    parents = _parents(nodes, groups)
    below: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for node in nodes.values():
        if node["type"] in groups or node["type"] not in GROUPS:
            below[parents.get(node["id"], "")].append(dict(node))
    for some in below.values():
        some.sort(key=lambda node: (".onExit" in node["name"], node.get("startedAt") or "~", node["name"]))
    return below


def _parents(nodes: Mapping[str, Mapping[str, Any]], groups: Mapping[NodeType, str]) -> dict[str, str]:
    """The parent of each node: its group, else its boundary."""
    parents = {key: str(node.get("boundaryID") or "") for key, node in nodes.items()}
    parents = {key: parent if parent in nodes else "" for key, parent in parents.items()}
    for key, node in nodes.items():
        mark = groups.get(node["type"])
        for child in (node.get("children") or ()) if mark else ():
            if child in nodes and nodes[child]["name"].startswith(f"{node['name']}{mark}"):
                parents[child] = key
    return parents


def _row(node: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], workflow: str, branch: str, old: bool) -> Row:
    kind = node["type"]
    reference = node.get("templateRef") or {}
    template = node.get("templateName") or reference.get("template") or ""
    pod = ""
    if kind == NodeType.POD:
        pod = node["id"] if old else pod_name(workflow, node["name"], template)
    title = node.get("displayName") or node["name"]
    handler, own, attempt = title.partition(f"{workflow}.onExit")
    if own and not handler and attempt[:1] in ("", "("):
        title = f"{template}{attempt}"
    return Row(
        node["id"], branch, title, Phase(node.get("phase") or "Pending"),
        kind, template, node_message(node, nodes), pod, unix_time(node.get("startedAt")),
        unix_time(node.get("finishedAt")), str((node.get("outputs") or {}).get("exitCode") or ""),
    )  # fmt: skip


def outputs(workflow: Mapping[str, Any]) -> dict[str, str]:
    """The workflow's output parameters: the global ones, and those of the nodes that nothing waits for."""
    nodes = workflow_nodes(workflow)
    status = workflow.get("status") or {}
    root = next((node for node in nodes.values() if node["name"] == workflow["metadata"]["name"]), {})
    last = [nodes[key] for key in root.get("outboundNodes") or () if key in nodes]
    outputs = [holder.get("outputs") or {} for holder in (*last, root, status)]
    entries = [entry for output in outputs for entry in output.get("parameters") or ()]
    return {entry["name"]: str(entry["value"]) for entry in entries if entry.get("value") is not None}


def exit_code(workflow: Mapping[str, Any]) -> int:
    """0 Succeeded, 2 refused by the controller, else the code of the first step that failed (1 where there is none)."""
    status = workflow.get("status") or {}
    if status.get("phase") == Phase.SUCCEEDED:
        return 0
    if str(status.get("message") or "").startswith(REFUSED):
        return 2
    bad = sorted((row for row in rows(workflow) if row.phase.bad and row.pod), key=lambda row: row.finished)
    return next((int(row.exit_code) for row in bad if row.exit_code not in ("", "0")), 1)
