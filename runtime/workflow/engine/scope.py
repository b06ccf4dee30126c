"""What a node may read of others: `tasks.a.outputs.parameters.x`, `.status`, `.exitCode`; lists over a loop's items."""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from everstep.runtime.workflow.engine.nodes import Node, Phase, node_id
from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.expressions.json_text import read_json
from everstep.runtime.workflow.expressions.values import go_json, parameter_text
from everstep.runtime.workflow.manifest.fields import list_at

Scope = dict[str, Any]
"""Values by dotted name. None: an output of a skipped task that has no default."""


def node_scope(prefix: str, node: Node, workflow: str, declared_outputs: Mapping[str, Any] | None) -> Scope:
    """Everything that others may read of a node. `declared_outputs`: the outputs that its template declares."""
    scope: Scope = {
        f"{prefix}.id": node_id(workflow, node.name),
        f"{prefix}.status": node.phase.value,
        f"{prefix}.startedAt": argo_time(node.started),
        f"{prefix}.hostNodeName": "localhost",
    }
    if node.pid or node.daemoned:
        scope[f"{prefix}.ip"] = "127.0.0.1"
    if node.finished:
        scope[f"{prefix}.finishedAt"] = argo_time(node.finished)
    if node.phase in (Phase.SKIPPED, Phase.OMITTED):
        for entry in list_at(declared_outputs, "parameters"):
            default = (entry.get("valueFrom") or {}).get("default")
            scope[f"{prefix}.outputs.parameters.{entry['name']}"] = None if default is None else parameter_text(default)
        return scope
    scope |= output_scope(prefix, node)
    return scope


def output_scope(prefix: str, node: Node) -> Scope:
    """The result, exit code and parameters of a node."""
    scope: Scope = {f"{prefix}.outputs.parameters.{name}": value for name, value in node.outputs.values().items()}
    if node.outputs.result is not None:
        scope[f"{prefix}.outputs.result"] = node.outputs.result
    if node.outputs.exit_code:
        scope[f"{prefix}.exitCode"] = node.outputs.exit_code
    return scope


def tasks_read(kind: str, read: Collection[str], all_tasks: Collection[str]) -> Collection[str]:
    """The known tasks or steps that the names in `read` refer to; all of them if a name is of no known one.

    It keeps a task's scope as small as what the task reads.
    """
    task_names = {name.split(".")[1] for name in read if name.startswith(f"{kind}.")}
    return task_names if kind not in read and all(task_name in all_tasks for task_name in task_names) else all_tasks


def node_artifacts(prefix: str, node: Node) -> dict[str, dict[str, Any]]:
    """Artifacts by dotted name."""
    return {f"{prefix}.outputs.artifacts.{entry['name']}": entry for entry in node.outputs.artifacts}


def argo_time(time: float) -> str:
    """A Unix time as Argo writes it: whole seconds, in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def loop_outputs(prefix: str, children: Iterable[Node]) -> Scope:
    """JSON lists of the outputs of a loop's items, in their order; only items that succeeded count.

    Raises ExpressionError for a result that is not JSON.
    """
    every: list[dict[str, str]] = []
    by_name: dict[str, list[str]] = {}
    results: list[Any] = []
    some = False
    for node in children:
        some = True
        if node.phase is not Phase.SUCCEEDED or node.hooked:
            continue
        values = node.outputs.values()
        if values:
            every.append(values)
        for name, value in values.items():
            by_name.setdefault(name, []).append(value)
        if node.outputs.result is not None:
            results.append(read_json(node.outputs.result, exact=True))
    if not some:
        return {}
    scope: Scope = {f"{prefix}.outputs.result": go_json(results), f"{prefix}.outputs.parameters": go_json(every)}
    for name, texts in by_name.items():
        scope[f"{prefix}.outputs.parameters.{name}"] = _json_list(texts)
    return scope


def _json_list(texts: list[str]) -> str:
    """A JSON list of the texts, or of their values where every text is a JSON map or list."""
    values = []
    for text in texts:
        try:
            value = read_json(text, exact=True)
        except ExpressionError:
            return go_json(texts)
        if not isinstance(value, dict | list):
            return go_json(texts)
        values.append(value)
    return go_json(values)
