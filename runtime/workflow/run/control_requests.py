"""Requests to a run from outside: each is a file in runs/NAME/asks, which the run's launcher reads, logs and removes.

A run without a launcher handles them when it is resumed.
"""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from everstep.runtime.system import atomic
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import Event, NodeSet, NodesResumed, ShutdownAsked
from everstep.runtime.workflow.engine.node_completion import NOT_SET
from everstep.runtime.workflow.engine.nodes import Node, NodeType, Phase, node_id


class ControlRequest(msgspec.Struct, frozen=True):
    """One request."""

    what: str
    """stop | terminate | resume | set"""
    selector: str = ""
    """Nodes as `argo --node-field-selector` names them: `displayName=a,phase=Running`; empty: all suspended nodes."""
    phase: str = ""
    message: str = ""
    parameters: dict[str, str] = {}


class ControlRequestError(ValueError):
    """The request cannot be carried out: one line that says why."""


SELECTOR_FIELDS = ("displayName", "name", "templateName", "phase", "id", "inputs.parameters")


def submit_request(folder: Path, wish: ControlRequest) -> Path:
    """Write a request for the launcher of that run folder, which removes the file once it has handled or refused it.

    Raises ControlRequestError for a selector that cannot be read.
    """
    _parse_selector(wish.selector)
    asks = folder / "asks"
    asks.mkdir(exist_ok=True)
    path = asks / f"{time.time_ns()}-{os.getpid()}.json"
    atomic.replace(path, msgspec.json.encode(wish))
    return path


def refuse_request(path: Path, why: str) -> None:
    """Answer a request with the reason why it was refused."""
    atomic.replace(path.with_suffix(".refused"), why.encode())


def take_refusal(path: Path) -> str:
    """Remove and return the reason why a request was refused; empty when it was carried out."""
    refusal = path.with_suffix(".refused")
    if not refusal.exists():
        return ""
    why = refusal.read_text()
    refusal.unlink()
    return why


def pending_requests(folder: Path) -> Iterator[tuple[Path, ControlRequest]]:
    """(file, request) of what waits in a run folder, oldest first."""
    for path in sorted((folder / "asks").glob("*.json")):
        yield path, msgspec.json.decode(path.read_bytes(), type=ControlRequest)


def request_events(engine: Engine, wish: ControlRequest, now: float) -> list[Event]:
    """The events that carry out a request. Raises ControlRequestError if it cannot be carried out."""
    if wish.what in ("stop", "terminate"):
        return [ShutdownAsked(now, wish.what.capitalize())]
    waiting = [
        node for node in engine.state.nodes.values() if node.type is NodeType.SUSPEND and not node.phase.fulfilled
    ]
    matching_nodes = [node.name for node in waiting if _matches(engine, node, _parse_selector(wish.selector))]
    if wish.what == "resume":
        for name in matching_nodes:
            _check_resumable(engine.state.nodes[name])
        return [NodesResumed(now, matching_nodes, bool(wish.selector))]
    if not matching_nodes:
        raise ControlRequestError(f"no suspended node matches --node-field-selector {wish.selector}")
    for name in matching_nodes:
        _check_settable(engine.state.nodes[name], wish.parameters)
    return [NodeSet(now, name, wish.phase, wish.message, wish.parameters) for name in matching_nodes]


def _check_resumable(node: Node) -> None:
    for entry in node.outputs.parameters:
        if entry.get("value") is None and (entry.get("valueFrom") or {}).get("default") is None:
            raise ControlRequestError(NOT_SET.format(entry["name"]))


def _check_settable(node: Node, parameters: Mapping[str, str]) -> None:
    outputs_by_name = {entry["name"]: entry for entry in node.outputs.parameters}
    for name in parameters:
        if name not in outputs_by_name:
            raise ControlRequestError(f"node is not expecting output parameter '{name}'")
        entry = outputs_by_name[name]
        if "supplied" not in (entry.get("valueFrom") or {}) or entry.get("value") is not None:
            why = "because it is not supplied or was already set"
            raise ControlRequestError(f"cannot set output parameter '{name}' {why}")


def succeeded_nodes(engine: Engine, selector: str) -> list[str]:
    """Names of the succeeded nodes that are selected; none without a selector.

    Raises ControlRequestError for a selector that selects none.
    """
    conditions = _parse_selector(selector)
    well = [node for node in engine.state.nodes.values() if node.phase is Phase.SUCCEEDED and conditions]
    names = [node.name for node in well if _matches(engine, node, conditions)]
    if conditions and not names:
        raise ControlRequestError(f"no node that has succeeded matches --node-field-selector {selector}")
    return names


def _parse_selector(selector: str) -> list[tuple[str, str, bool]]:
    conditions = []
    for part in filter(None, selector.split(",")):
        field, operator, value = part.partition("!=") if "!=" in part else part.partition("=")
        field, value = field.strip(), value.removeprefix("=").strip()
        if not operator or not field.startswith(SELECTOR_FIELDS):
            raise ControlRequestError(
                f"--node-field-selector {selector!r}: write FIELD=VALUE with one of {', '.join(SELECTOR_FIELDS)}"
            )
        conditions.append((field, value, operator == "="))
    return conditions


def _matches(engine: Engine, node: Node, conditions: list[tuple[str, str, bool]]) -> bool:
    values: Mapping[str, Any] = {
        "displayName": node.display_name, "name": node.name, "templateName": node.template, "phase": node.phase.value,
        "id": node_id(engine.state.name, node.name),
        **{f"inputs.parameters.{p['name']}.value": p.get("value") for p in node.inputs.get("parameters", [])},
    }  # fmt: skip
    return all((values.get(field) == value) == is_equal for field, value, is_equal in conditions)
