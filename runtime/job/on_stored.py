"""Handles events about what the store has, what of it cannot be restored, and which shard of data is next."""

from collections.abc import Callable
from typing import Any

from everstep.runtime.job import checkpoints, data_queues
from everstep.runtime.job.events import (
    DataShardAsked,
    DeletionDue,
    ManifestWritten,
    RestoreFailed,
    ShardStored,
    Survey,
)
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.reasons import Reason
from everstep.runtime.job.records import (
    Committed,
    DataShardEnded,
    DataShardTaken,
    Forgotten,
    PassedOver,
    ShardPersisted,
    StoreSurveyed,
)
from everstep.runtime.job.state import restore_point, round_number
from everstep.runtime.job.transaction import Refused, Transaction


def record_survey(tx: Transaction, survey: Survey) -> None:
    """Record checkpoints that the store has but the journal does not know, and pass over damaged or missing ones."""
    state = tx.state
    manifests = {checkpoint.manifest for checkpoint in state.checkpoints.values()}
    new_refusals = [refusal for refusal in survey.refusals if refusal not in state.refused]
    new_checkpoints = tuple(
        checkpoint_in_store
        for checkpoint_in_store in survey.unjournaled
        if checkpoint_in_store.key not in manifests
        and not any(r.covers(shard) for r in (*state.refused, *new_refusals) for shard in checkpoint_in_store.shards)
    )
    if new_checkpoints or survey.rounds > max(round_number(state), state.rounds_before):
        tx.record(StoreSurveyed(time=tx.now, found=new_checkpoints, rounds=survey.rounds))
    if new_refusals:
        tx.record(PassedOver(time=tx.now, refusals=tuple(new_refusals)))


def _on_restore_failed(tx: Transaction, event: RestoreFailed) -> None:
    report, current = event.unrestored, round_number(tx.state)
    tx.require_node(report.node)
    tx.mark_alive(report.node)
    point = restore_point(tx.state)
    refusals = tuple(r for r in report.refusals if (r.round, r.iteration) == point and r not in tx.state.refused)
    if report.round != current or tx.state.phase is JobPhase.ENDED or not refusals:
        return  # Another node has reported it before.
    tx.record(PassedOver(time=tx.now, refusals=refusals, round=current))
    record_survey(tx, event.survey)
    if tx.state.phase is JobPhase.RUNNING:
        tx.break_round(Reason.DAMAGED, checkpoints.refusal_summary(refusals))


def _on_shard_stored(tx: Transaction, event: ShardStored) -> None:
    node, shard = event.persisted.node, event.persisted.holding
    tx.require_node(node)
    tx.mark_alive(node)
    if not shard.key or not 0 <= shard.shard < shard.shards or not 0 < shard.round <= round_number(tx.state):
        raise Refused(f"{node} persisted no shard of this job: {shard.key!r} of round {shard.round}")
    key = shard.round, shard.iteration
    checkpoint = tx.state.checkpoints.get(key)
    if checkpoint is None and key <= tx.state.forgotten:
        return
    if checkpoint is None or shard.shard not in checkpoint.shards:
        tx.record(ShardPersisted(time=tx.now, holding=shard))


def _on_manifest_written(tx: Transaction, event: ManifestWritten) -> None:
    tx.committing.discard((event.round, event.iteration))
    tx.record(Committed(time=tx.now, round=event.round, iteration=event.iteration, key=event.key))


def _on_deletion_due(tx: Transaction, event: DeletionDue) -> None:
    point = restore_point(tx.state)
    forgotten = tuple(key for key in event.checkpoints if key in tx.state.checkpoints and key != point)
    if forgotten:
        tx.record(Forgotten(time=tx.now, places=forgotten))


def _on_data_shard_asked(tx: Transaction, event: DataShardAsked) -> None:
    request = event.request
    node = tx.require_node(request.node)
    if node.phase is not NodePhase.RUNNING or not request.round == node.round == round_number(tx.state):
        return  # From a round that is over: its workers are about to die.
    tx.mark_alive(request.node)
    queue = tx.state.queues.get(request.queue) or data_queues.DataQueue(request.size)
    if request.size != queue.size or data_queues.is_duplicate(queue, request):
        return
    worker = data_queues.worker_name(request)
    if (lease := queue.leases.get(worker)) and lease.position != data_queues.NOTHING:
        tx.record(
            DataShardEnded(
                time=tx.now, queue=request.queue, worker=worker, round=request.round, number=request.number,
                position=lease.position, is_done=lease.position == request.done, iteration=request.iteration,
            )
        )  # fmt: skip
        queue = tx.state.queues[request.queue]
    if request.wants and queue.has_work:
        tx.record(
            DataShardTaken(
                time=tx.now, queue=request.queue, size=request.size, worker=worker, round=request.round,
                number=request.number, position=data_queues.next_position(queue),
            )
        )  # fmt: skip


STORED_HANDLERS: dict[type, Callable[[Transaction, Any], None]] = {
    ShardStored: _on_shard_stored,
    RestoreFailed: _on_restore_failed,
    ManifestWritten: _on_manifest_written,
    DeletionDue: _on_deletion_due,
    DataShardAsked: _on_data_shard_asked,
}
