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


def node_scope(prefix: str, node: Node, workflow: str, declared: Mapping[str, Any] | None) -> Scope:
    """All that others may read of a node; `declared` is the outputs of the template that it calls."""
    found: Scope = {
        f"{prefix}.id": node_id(workflow, node.name),
        f"{prefix}.status": node.phase.value,
        f"{prefix}.startedAt": argo_time(node.started),
        f"{prefix}.hostNodeName": "localhost",
    }
    if node.pid or node.daemoned:
        found[f"{prefix}.ip"] = "127.0.0.1"
    if node.finished:
        found[f"{prefix}.finishedAt"] = argo_time(node.finished)
    if node.phase in (Phase.SKIPPED, Phase.OMITTED):
        for entry in list_at(declared, "parameters"):
            default = (entry.get("valueFrom") or {}).get("default")
            found[f"{prefix}.outputs.parameters.{entry['name']}"] = None if default is None else parameter_text(default)
        return found
    found |= output_scope(prefix, node)
    return found


def output_scope(prefix: str, node: Node) -> Scope:
    """Result, exit code and parameters."""
    found: Scope = {f"{prefix}.outputs.parameters.{name}": value for name, value in node.outputs.values().items()}
    if node.outputs.result is not None:
        found[f"{prefix}.outputs.result"] = node.outputs.result
    if node.outputs.exit_code:
        found[f"{prefix}.exitCode"] = node.outputs.exit_code
    return found


def tasks_read(kind: str, read: Collection[str], known: Collection[str]) -> Collection[str]:
    """Those of the known tasks or steps that the names in `read` are of; all when one is of the whole, or of none.

    So that a task's scope is as large as what it reads, not as large as what is there.
    """
    found = {name.split(".")[1] for name in read if name.startswith(f"{kind}.")}
    return found if kind not in read and all(one in known for one in found) else known


def node_artifacts(prefix: str, node: Node) -> dict[str, dict[str, Any]]:
    """Artifacts by dotted name."""
    return {f"{prefix}.outputs.artifacts.{entry['name']}": entry for entry in node.outputs.artifacts}


def argo_time(time: float) -> str:
    """As Argo writes a time: whole seconds, in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def loop_outputs(prefix: str, children: Iterable[Node]) -> Scope:
    """Lists over the items of a loop, in their order; only what succeeded counts.

    Raises ExpressionError when a result is no JSON.
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
    found: Scope = {f"{prefix}.outputs.result": go_json(results), f"{prefix}.outputs.parameters": go_json(every)}
    for name, texts in by_name.items():
        found[f"{prefix}.outputs.parameters.{name}"] = _json_list(texts)
    return found


def _json_list(texts: list[str]) -> str:
    """A JSON list of strings, or of the maps and lists that all of them are."""
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
