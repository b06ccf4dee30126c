"""What records say of checkpoints and of shards of data: the part of `fold` that outlives every node."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from everstep.runtime.job import checkpoints as stored
from everstep.runtime.job import data_queues
from everstep.runtime.job.certification import KEPT_CERTIFIED
from everstep.runtime.job.checkpoints import Checkpoints, drop_refused, with_manifest, with_shard, with_survey
from everstep.runtime.job.data_queues import DataQueue
from everstep.runtime.job.nodes import UnlistedTransition
from everstep.runtime.job.records import (
    BatchSkipped,
    Committed,
    DataShardEnded,
    DataShardTaken,
    Forgotten,
    PassedOver,
    ShardPersisted,
    StateCertified,
    StateRejected,
    StoreSurveyed,
)
from everstep.runtime.job.state import State

KEPT_REFUSED = 256
"""Refused sources that the state remembers: more than it remembers checkpoints."""


def _apply_data_shard_taken(state: State, record: DataShardTaken) -> State:
    before = state.queues.get(record.queue) or data_queues.DataQueue(record.size)
    if not before.has_work or record.position != data_queues.next_position(before):
        raise UnlistedTransition(f"shard {record.position} of {record.queue} is not the next one")
    lease = data_queues.Lease(record.round, record.number, record.position)
    after = data_queues.take_position(before, record.worker, lease)
    return replace(state, queues={**state.queues, record.queue: after})


def _apply_data_shard_ended(state: State, record: DataShardEnded) -> State:
    before = state.queues[record.queue]
    if before.leases[record.worker].position != record.position:
        raise UnlistedTransition(f"{record.worker} is not doing shard {record.position} of {record.queue}")
    lease = data_queues.Lease(record.round, record.number, data_queues.NOTHING)
    if record.is_done:
        after = data_queues.finish_position(before, record.worker, lease, record.position, record.iteration)
    else:
        after = data_queues.with_given_back(before, record.worker, lease, record.position)
    return replace(state, queues={**state.queues, record.queue: after})


def _apply_shard_persisted(state: State, record: ShardPersisted) -> State:
    checkpoints = with_shard(state.checkpoints, record.holding)
    return replace(state, checkpoints=checkpoints, iteration=max(state.iteration, record.holding.iteration))


def _apply_state_certified(state: State, record: StateCertified) -> State:
    return _with_certified(state, (record.round, record.iteration))


def _with_certified(state: State, *places: tuple[int, int]) -> State:
    """Remember the newest certified states, and those of all checkpoints that the state knows."""
    every = sorted({*state.certified, *places})
    older, newest = every[:-KEPT_CERTIFIED], every[-KEPT_CERTIFIED:]
    return replace(state, certified=(*(place for place in older if place in state.checkpoints), *newest))


def _apply_state_rejected(state: State, record: StateRejected) -> State:
    place = record.round, record.iteration
    certified_places = tuple(place_certified for place_certified in state.certified if place_certified < place)
    rejections = dict(state.rejections)
    if not record.nodes:
        rejections[record.iteration] = rejections.get(record.iteration, 0) + 1
    return replace(state, certified=certified_places, rejections=rejections, reason=record.detail)


def _apply_batch_skipped(state: State, record: BatchSkipped) -> State:
    return replace(state, skipped=tuple(sorted({*state.skipped, record.iteration})), reason=record.detail)


def _apply_committed(state: State, record: Committed) -> State:
    checkpoints = with_manifest(state.checkpoints, (record.round, record.iteration), record.key)
    return replace(
        state, checkpoints=checkpoints, iteration=max(state.iteration, record.iteration),
        queues=_settled_queues(state.queues, checkpoints),
    )  # fmt: skip


def _settled_queues(queues: dict[str, DataQueue], checkpoints: Checkpoints) -> dict[str, DataQueue]:
    """The queues when these checkpoints are kept: no round goes back behind the oldest that is committed."""
    oldest = min((iteration for (_, iteration), checkpoint in checkpoints.items() if checkpoint.manifest), default=0)
    return {name: data_queues.settle_positions(queue, oldest) for name, queue in queues.items()}


def _apply_forgotten(state: State, record: Forgotten) -> State:
    deleted = set(record.places)
    checkpoints = {place: checkpoint for place, checkpoint in state.checkpoints.items() if place not in deleted}
    queues = _settled_queues(state.queues, checkpoints)
    return replace(state, checkpoints=checkpoints, forgotten=max(state.forgotten, *deleted), queues=queues)


def _apply_store_surveyed(state: State, record: StoreSurveyed) -> State:
    checkpoints = with_survey(state.checkpoints, record.found)
    state = replace(state, checkpoints=checkpoints, rounds_before=max(state.rounds_before, record.rounds))
    sound = [checkpoint.shards[0] for checkpoint in record.found if checkpoint.is_certified]
    state = _with_certified(state, *((shard.round, shard.iteration) for shard in sound))
    if not record.found:
        return state
    newest = max((stored_.shards[0] for stored_ in record.found), key=lambda shard: (shard.round, shard.iteration))
    why = f"iteration {newest.iteration} of round {newest.round}, which the journal does not record, is in the store"
    return replace(state, reason=why, iteration=max(state.iteration, newest.iteration))


def _apply_passed_over(state: State, record: PassedOver) -> State:
    refusals = tuple(dict.fromkeys((*state.refused, *record.refusals)))[-KEPT_REFUSED:]
    checkpoints = drop_refused(state.checkpoints, record.refusals)
    excused_rounds = state.excused | {record.round} if record.round else state.excused
    return replace(
        state,
        refused=refusals,
        checkpoints=checkpoints,
        excused=excused_rounds,
        reason=stored.refusal_summary(record.refusals),
    )


STORED_HANDLERS: Mapping[type, Callable[[State, Any], State]] = {
    ShardPersisted: _apply_shard_persisted,
    StateCertified: _apply_state_certified,
    StateRejected: _apply_state_rejected,
    BatchSkipped: _apply_batch_skipped,
    Committed: _apply_committed,
    Forgotten: _apply_forgotten,
    StoreSurveyed: _apply_store_surveyed,
    PassedOver: _apply_passed_over,
    DataShardTaken: _apply_data_shard_taken,
    DataShardEnded: _apply_data_shard_ended,
}
