"""The run as Argo's own Workflow object: `workflow.json`, with `status.nodes`."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from everstep.runtime import faults
from everstep.runtime.system import atomic
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.nodes import Node, NodeType, Outputs, log_name, node_id, pod_name
from everstep.runtime.workflow.local_pods.progress import Progress

WRITE_EVERY_S = 1.0
"""How old `workflow.json` may become while the run changes, if writing it is fast."""
WRITE_SHARE = 0.02
"""Share of the time that writing may take. So a run of twice the nodes writes twice as much, not four times."""


class StatusWriter:
    """Writes `workflow.json`; the JSON of an unchanged node is reused."""

    def __init__(self, engine: Engine, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._folder = folder
        self._clock = clock
        self._progress = Progress(engine, folder)
        self._nodes: dict[str, tuple[tuple[Any, ...], msgspec.Raw]] = {}
        self.every_s = WRITE_EVERY_S
        """How old the file may become: longer where a write takes long, so that all of them take SHARE of the time."""

    def write(self) -> None:
        """Replace `workflow.json` by the current status."""
        began = self._clock()
        with atomic.replacing(self._folder / "workflow.json") as file:
            file.write(msgspec.json.encode(self._workflow()) + b"\n")
            faults.point("executor.before_status")
        self.every_s = max(WRITE_EVERY_S, (self._clock() - began) / WRITE_SHARE)
        faults.point("executor.after_status")

    def _workflow(self) -> dict[str, Any]:
        """The object as the Kubernetes API would give it."""
        engine = self._engine
        raw = engine.state.manifest.raw
        metadata = {key: value for key, value in (raw.get("metadata") or {}).items() if key != "generateName"}
        more = engine.state.manifest.spec.get("workflowMetadata") or {}
        for kind, last in (("labels", engine.variables.labels), ("annotations", {})):
            if own := {**(metadata.get(kind) or {}), **(more.get(kind) or {}), **last}:
                metadata[kind] = own
        spec = dict(raw["spec"])
        if engine.state.shutdown:
            spec["shutdown"] = engine.state.shutdown
        how_far, of_nodes = self._progress.compute()
        artifacts = [{**entry, "name": entry["globalName"]} for entry in engine.variables.artifacts.values()]
        exported_outputs = {"parameters": list(engine.variables.outputs.values()), "artifacts": artifacts}
        exported_outputs = {key: value for key, value in exported_outputs.items() if value}
        status = {
            "phase": engine.phase.value,
            "message": engine.message or None,
            "startedAt": timestamp(engine.state.created),
            "finishedAt": timestamp(engine.state.finished),
            "progress": how_far,
            "conditions": _conditions(engine) or None,
            "outputs": exported_outputs or None,
            "nodes": {
                node_id(engine.state.name, node.name): self._node_json(node, of_nodes.get(node.name, ""))
                for node in engine.state.nodes.values()
            },
        }
        times = {"uid": engine.state.uid, "creationTimestamp": timestamp(engine.state.created)}
        return {
            "apiVersion": raw["apiVersion"],
            "kind": raw["kind"],
            "metadata": {**metadata, "name": engine.state.name, **times},
            "spec": spec,
            "status": {key: value for key, value in status.items() if value is not None},
        }

    def _node_json(self, node: Node, how_far: str) -> msgspec.Raw:
        """A node as JSON; `how_far`: its progress."""
        values = () if node.phase.fulfilled else tuple(node.outputs.values().items())
        mark = (node.phase, node.message, node.finished, len(node.children), len(node.outbound), node.life, values,
                how_far, node.daemoned)  # fmt: skip
        entry_before = self._nodes.get(node.name)
        if entry_before is None or entry_before[0] != mark:
            text = msgspec.json.encode(_node_status(self._engine, node, self._folder, how_far))
            entry_before = self._nodes[node.name] = (mark, msgspec.Raw(text))
        return entry_before[1]


def timestamp(moment: float) -> str | None:
    """Unix time in Argo's form, with the fraction that Argo leaves out; None for 0."""
    return (
        datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if moment
        else None
    )


def _node_status(engine: Engine, node: Node, folder: Path, how_far: str) -> dict[str, Any]:
    status: dict[str, Any] = {
        "id": node_id(engine.state.name, node.name),
        "name": node.name,
        "displayName": node.display_name,
        "type": node.type.value,
        "templateName": node.template,
        "templateRef": node.template_ref or None,
        "phase": node.phase.value,
        "message": node.message,
        "boundaryID": node_id(engine.state.name, node.boundary) if node.boundary else "",
        "startedAt": timestamp(node.started),
        "finishedAt": timestamp(node.finished),
        "progress": how_far,
        "daemoned": node.daemoned or None,
        "inputs": node.inputs or None,
        "outputs": _outputs_status(node.outputs),
        "memoizationStatus": _memo_status(node),
        "children": [node_id(engine.state.name, child) for child in node.children],
        "outboundNodes": [node_id(engine.state.name, end) for end in node.outbound],
    }
    if node.type is NodeType.POD:
        status["podName"] = pod_name(engine.state.name, node.name, node.pod_template)
        status["log"] = str(folder / "logs" / f"{log_name(engine.state.name, node)}.log")
    return {key: value for key, value in status.items() if value not in ("", None, [])}


def _conditions(engine: Engine) -> list[dict[str, str]]:
    """Argo's conditions: whether a pod is running, and whether the workflow has ended."""
    conditions = []
    if any(node.type is NodeType.POD for node in engine.state.nodes.values()):
        conditions.append({"type": "PodRunning", "status": str(bool(engine.running_pods()))})
    return [*conditions, {"type": "Completed", "status": "True"}] if engine.state.finished else conditions


def _memo_status(node: Node) -> dict[str, Any] | None:
    return {"hit": node.memo_hit, "key": node.memo[1], "cacheName": node.memo[0]} if node.memo[0] else None


def _outputs_status(outputs: Outputs) -> dict[str, Any] | None:
    fields = {
        "parameters": outputs.parameters,
        "artifacts": outputs.artifacts,
        "result": outputs.result,
        "exitCode": outputs.exit_code,
    }
    output_fields = {key: value for key, value in fields.items() if value not in ([], None, "")}
    return ({**output_fields, "result": ""} if outputs.result == "" else output_fields) or None
