"""The status of a job as a list of conditions, after AITrainingJob's: the last one holds, earlier ones are history.

They are part of the state, so they follow from the journal alone: `next_conditions` applies a record.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from itertools import islice
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from everstep.runtime.job.nodes import JOINED, NodePhase
from everstep.runtime.job.reasons import JobResult, Reason
from everstep.runtime.job.records import (
    DesiredChanged,
    JobEnded,
    JobReopened,
    MasterClaimed,
    NodeJoined,
    NodeRequested,
    RoundBroken,
    RoundFormed,
)
from everstep.runtime.job.roster import Roster
from everstep.runtime.protocol.rounds import Round

KEPT_CONDITIONS = 50
"""Conditions that the state remembers."""
NAMED = 8
"""New nodes that a condition names."""
_ON_THEIR_WAY = "; on their way: "


class ConditionType(StrEnum):
    """What a job is doing."""

    PENDING = "Pending"
    """No node has joined yet."""
    CREATING = "Creating"
    """Nodes join; no round has run yet."""
    RUNNING = "Running"
    SCALING = "Scaling"
    """Another number of nodes was requested, or is being applied."""
    RESTARTING = "Restarting"
    """A fault broke the round."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Condition(msgspec.Struct, frozen=True):
    """A condition of the job, current or past."""

    type: ConditionType
    reason: str
    """One word, CamelCase."""
    message: str
    since: float
    """Unix time from which it holds."""
    seen: float
    """Unix time of the last record that confirmed it."""
    holds: bool = True


class Facts(Protocol):
    """The part of `state.State` that conditions are derived from."""

    @property
    def time(self) -> float: ...
    @property
    def round(self) -> Round | None: ...
    @property
    def nodes(self) -> Roster: ...
    @property
    def members(self) -> Mapping[str, int]: ...
    @property
    def conditions(self) -> tuple[Condition, ...]: ...


_Update = tuple[ConditionType, str, str] | None
C = ConditionType


def next_conditions(state: Facts, record: object) -> tuple[Condition, ...]:
    """The conditions after the record; `state` is the state after it."""
    tell = _UPDATES.get(type(record))
    update = tell(state, record) if tell else None
    conditions = state.conditions
    if update is None:
        return conditions
    kind, reason, message = update
    last = conditions[-1] if conditions else None
    if last and last.type is kind and last.holds:
        return (*conditions[:-1], replace(last, reason=reason, message=message, seen=state.time))
    closed_condition = [replace(last, holds=False)] if last else []
    return (*conditions[:-1], *closed_condition, Condition(kind, reason, message, state.time, state.time))[
        -KEPT_CONDITIONS:
    ]


def _after_master_claimed(state: Facts, record: MasterClaimed) -> _Update:
    return None if state.conditions else (C.PENDING, "NodesAwaited", "no node has joined yet")


def _after_node_change(state: Facts, record: NodeRequested | NodeJoined) -> _Update:
    if state.round is not None or state.conditions[-1].type not in (C.PENDING, C.CREATING):
        return None
    joined_count, coming = state.nodes.total(JOINED), state.nodes.total((NodePhase.REQUESTED,))
    if joined_count:
        return C.CREATING, "NodesJoining", f"{joined_count} nodes have joined, {coming} are on their way"
    return C.PENDING, "NodesAwaited", f"{coming} nodes are requested, none has joined yet"


def _after_node_requested(state: Facts, record: NodeRequested) -> _Update:
    last = state.conditions[-1]
    if last.type is not C.SCALING:
        return _after_node_change(state, record)
    coming = (NodePhase.REQUESTED,)
    names = ", ".join(node.name for node in islice(state.nodes.select(record.role, coming), NAMED))
    unnamed = state.nodes.count(record.role, coming) - NAMED
    request = last.message.partition(_ON_THEIR_WAY)[0] + _ON_THEIR_WAY + names
    return C.SCALING, last.reason, f"{request} and {unnamed} more" if unnamed > 0 else request


def _after_round_formed(state: Facts, record: RoundFormed) -> _Update:
    return C.RUNNING, "RoundFormed", f"round {record.round.number}: {record.round.reason}"


def _after_round_broken(state: Facts, record: RoundBroken) -> _Update:
    kind = C.SCALING if record.reason in (Reason.GROW, Reason.SCALED) else C.RESTARTING
    return kind, _camel_case(record.reason.value), record.detail


def _after_desired_changed(state: Facts, record: DesiredChanged) -> _Update:
    if state.conditions[-1].type not in (C.RUNNING, C.SCALING):
        return None
    request = f"{record.nodes} {record.role} nodes are requested" + (f": {record.detail}" if record.detail else "")
    if record.nodes == state.members.get(record.role):
        return C.RUNNING, "SizeReached", request
    return C.SCALING, "SizeChanged", f"{request}; {state.members.get(record.role, 0)} train"


def _after_job_ended(state: Facts, record: JobEnded) -> _Update:
    kind = C.SUCCEEDED if record.result is JobResult.SUCCEEDED else C.FAILED
    return kind, f"Job{_camel_case(record.result.value)}", record.reason


def _after_job_reopened(state: Facts, record: JobReopened) -> _Update:
    return C.PENDING, "JobReopened", "the job was resumed; no node has joined yet"


def _camel_case(text: str) -> str:
    return "".join(word.capitalize() for word in text.replace("_", " ").split())


_UPDATES: dict[type, Callable[[Facts, Any], _Update]] = {
    MasterClaimed: _after_master_claimed,
    NodeRequested: _after_node_requested,
    NodeJoined: _after_node_change,
    RoundFormed: _after_round_formed,
    RoundBroken: _after_round_broken,
    DesiredChanged: _after_desired_changed,
    JobEnded: _after_job_ended,
    JobReopened: _after_job_reopened,
}
