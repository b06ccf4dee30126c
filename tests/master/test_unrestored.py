"""POST /v1/unrestored: the master looks into the store, passes over, and begins from an older checkpoint."""

import asyncio

from everstep.runtime.checkpoint.stored.keys import manifest_key, shard_key
from everstep.runtime.checkpoint.stored.manifest import encode_manifest, make_commit
from everstep.runtime.job.reasons import Reason
from everstep.runtime.job.records import FaultJudged, PassedOver, RoundBroken
from everstep.runtime.job.spec import JobSpec, RoleSpec
from everstep.runtime.journal.journal import read_journal
from everstep.runtime.protocol.holdings import Holding, Refusal
from everstep.runtime.protocol.messages import Unrestored, WorkerExit
from tests.master.shell import Shell, TroubledStore, in_virtual_time

SPEC = JobSpec("j", {"worker": RoleSpec(1, 1)}, keep_last=1)


def commit(store: TroubledStore, iteration: int) -> Holding:
    """What another master of the job left, of which this one's journal does not tell."""
    holding = Holding(1, iteration, size=1, key=shard_key("j", 1, iteration, 0), digest="d" * 32)
    store.objects[holding.key] = b"9"
    store.objects[manifest_key("j", (1, iteration))] = encode_manifest(make_commit("j", 1, [holding]))
    return holding


def test_a_node_that_cannot_restore_begins_from_an_older_checkpoint_and_the_damaged_one_stays() -> None:
    store = TroubledStore()

    async def story() -> None:
        shell = Shell(SPEC, store)
        await shell.open()
        node = next(iter(shell.brain.state.nodes))
        await shell.join(node)
        store.objects[shard_key("j", 1, 20, 0)] = b"9"
        assert (await shell.persist(node, 1, 20)).status == 200
        await shell.ask("fault", WorkerExit(node, 1, 0, 0, -9, 20))
        seat = await shell.join(node, 1)
        assert seat.restore is not None
        assert seat.restore.iteration == 20
        commit(store, 10)
        refusal = Refusal(1, 20, "bytes are damaged", key=shard_key("j", 1, 20, 0))
        replies = await asyncio.gather(*(shell.ask("unrestored", Unrestored(node, 2, (refusal,))) for _ in range(5)))
        assert [reply.status for reply in replies] == [200] * 5
        seat = await shell.join(node, 2)
        assert seat.restore is not None
        assert seat.restore.iteration == 10
        store.objects[shard_key("j", 3, 30, 0)] = b"9"
        assert (await shell.persist(node, 3, 30)).status == 200
        await shell.brain.delete_unneeded(last=1)
        await shell.close()

    in_virtual_time(store, story)
    records = list(read_journal(store, "j"))
    assert sum(isinstance(record, PassedOver) for record in records) == 1
    broken = [record for record in records if isinstance(record, RoundBroken)]
    assert [record.reason for record in broken] == [Reason.KILLED, Reason.DAMAGED]
    assert broken[1].detail == "iteration 20 of round 1 is skipped: bytes are damaged"
    assert sum(isinstance(record, FaultJudged) for record in records) == 1
    assert manifest_key("j", (1, 20)) in store.objects
    assert manifest_key("j", (3, 30)) in store.objects
