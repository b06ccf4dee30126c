"""Encodes a state as JSON with a schema version, so that the start of a journal need not be replayed."""

from typing import Any

import msgspec

from everstep.runtime.job.checkpoints import Checkpoint, Shards
from everstep.runtime.job.data_queues import DoneLog
from everstep.runtime.job.nodes import NodeState
from everstep.runtime.job.records import FaultJudged
from everstep.runtime.job.roster import Roster
from everstep.runtime.job.state import State
from everstep.runtime.protocol.holdings import Holding

SCHEMA = 10
"""Rises when a field of the state is added, removed or changes its meaning."""


class SnapshotError(ValueError):
    """The bytes are not a snapshot, or one of another schema; the journal must be replayed instead."""


class _Replica(msgspec.Struct):
    role: str
    index: int
    relaunches: int = 0
    given_up: FaultJudged | None = None


class _KeptCheckpoint(msgspec.Struct):
    round: int
    iteration: int
    checkpoint: Checkpoint


class _Snapshot(msgspec.Struct):
    schema: int
    nodes: list[NodeState]
    places: list[_Replica]
    checkpoints: list[_KeptCheckpoint]
    rest: msgspec.Raw


_SPECIAL = ("nodes", "relaunches", "given_up", "checkpoints")
_Rest = msgspec.defstruct(
    "_Rest", [(f.name, f.type) for f in msgspec.structs.fields(State) if f.name not in _SPECIAL], module=__name__
)


def encode_snapshot(state: State) -> bytes:
    """The state as JSON, the same for equal states; `decode_snapshot` returns an equal state."""
    places: dict[tuple[str, int], _Replica] = {}
    for (role, index), times in state.relaunches.items():
        places[role, index] = _Replica(role, index, times)
    for (role, index), judgement in state.given_up.items():
        places.setdefault((role, index), _Replica(role, index)).given_up = judgement
    rest = {name: _in_order(getattr(state, name)) for name in _Rest.__struct_fields__}
    checkpoints = [
        _KeptCheckpoint(round_, iteration, checkpoint) for (round_, iteration), checkpoint in state.checkpoints.items()
    ]
    others = msgspec.Raw(msgspec.json.encode(_Rest(**rest), enc_hook=list))
    snapshot = _Snapshot(SCHEMA, list(state.nodes.values()), list(places.values()), checkpoints, others)
    return msgspec.json.encode(snapshot, enc_hook=list)


def _in_order(value: Any) -> Any:
    """Equal sets may be iterated in different orders."""
    return sorted(value) if isinstance(value, frozenset) else value


def decode_snapshot(data: bytes) -> State:
    """The state in a snapshot. Raises SnapshotError."""
    try:
        if (schema := msgspec.json.decode(data, type=dict[str, Any]).get("schema")) != SCHEMA:
            raise SnapshotError(f"a snapshot of schema {schema}, this Everstep reads {SCHEMA}")
        read = msgspec.json.decode(data, type=_Snapshot, dec_hook=_decode_special)
        rest = msgspec.json.decode(read.rest, type=_Rest, dec_hook=_decode_special)
    except msgspec.DecodeError as error:
        raise SnapshotError(f"no snapshot: {error}") from error
    return State(
        nodes=Roster(read.nodes),
        relaunches={(p.role, p.index): p.relaunches for p in read.places if p.relaunches},
        given_up={(p.role, p.index): p.given_up for p in read.places if p.given_up},
        checkpoints={(k.round, k.iteration): k.checkpoint for k in read.checkpoints},
        **{name: getattr(rest, name) for name in _Rest.__struct_fields__},
    )


def _decode_special(kind: type, raw: object) -> Shards | DoneLog:
    if kind is DoneLog:
        return DoneLog(msgspec.convert(raw, list[tuple[int, int]]))
    return Shards(msgspec.convert(raw, tuple[Holding, ...]))
