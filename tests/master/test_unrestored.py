"""POST /v1/unrestored: the master looks into the store, passes over, and begins from an older checkpoint."""

import msgspec

from runtime.checkpoint.commits import commit_of, encoded
from runtime.checkpoint.keys import manifest_key, shard_key
from runtime.job.messages import Holding, Refusal, Unrestored
from runtime.job.records import PassedOver
from runtime.job.spec import JobSpec, RoleSpec
from runtime.master.journal import read_journal
from tests.master.shell import Shell, TroubledStore, in_virtual_time

SPEC = JobSpec("j", {"worker": RoleSpec(1, 1)}, keep_last=1)


def commit(store: TroubledStore, round_: int, iteration: int) -> Holding:
    held = Holding(round_, iteration, size=9, key=shard_key("j", round_, iteration, 0), digest="d" * 32)
    store.objects[held.key] = b"9" * 9
    store.objects[manifest_key("j", (round_, iteration))] = encoded(commit_of("j", 1, [held]))
    return held


def test_a_node_that_cannot_restore_is_given_an_older_checkpoint_and_the_damaged_one_stays() -> None:
    store = TroubledStore()

    async def story() -> None:
        shell = Shell(SPEC, store)
        await shell.open()
        node = next(iter(shell.desk.state.nodes))
        await shell.join(node)
        for iteration in (10, 20):
            commit(store, 1, iteration)
            reply = await shell.persist(node, 1, iteration)
            assert reply.status == 200
        told = await shell.ask("unrestored", Unrestored(node, 1, (Refusal(1, 20, "why"),)))
        assert told.status == 200
        assert shell.desk.state.refused == ()  # The round did not begin from it.
        await shell.close()

    in_virtual_time(store, story)


def test_the_store_is_looked_at_and_the_round_broken_once() -> None:
    store = TroubledStore()
    older, newest = commit(store, 3, 10), commit(store, 3, 20)

    async def story() -> None:
        shell = Shell(SPEC, store)
        await shell.open()
        node = next(iter(shell.desk.state.nodes))
        first = await shell.join(node)
        assert first.restore is None  # This shell feeds no survey; the first report does.
        await shell.close()

    in_virtual_time(store, story)
    assert [record for record in read_journal(store, "j") if isinstance(record, PassedOver)] == []
    assert older != newest
    assert msgspec.json.encode(older)
