"""The real shell over a store that fails, is slow, or gives ambiguous answers, in virtual time."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everstep.runtime.job.fold import fold
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.records import NodeFinished, RoundFormed, ShardPersisted
from everstep.runtime.job.spec import JobSpec, Patience, RoleSpec
from everstep.runtime.journal import snapshots
from everstep.runtime.journal.journal import Fenced
from everstep.runtime.master import read_journal
from everstep.runtime.master.endpoints import HEARTBEAT_POLL_S
from everstep.runtime.master.retry import PATIENCE_S
from everstep.runtime.protocol.messages import Ack, Directive
from everstep.runtime.store import Entry, StoreError
from tests.examples import examples
from tests.master.shell import Shell, Trouble, TroubledStore, in_virtual_time, passes

SPEC = JobSpec("j", {"worker": RoleSpec(2, 1)}, Patience(silence_s=1e6, join_timeout_s=1e6, no_progress=0), hosts="")
NODES = ["worker-0-0", "worker-1-0"]
WRITE_TROUBLES = [Trouble.REFUSED, Trouble.SILENT, Trouble.AMBIGUOUS, Trouble.SLOW]


async def _two_seats(shell: Shell) -> None:
    seats = await asyncio.gather(*(shell.join(node) for node in NODES))
    assert {seat.group_rank for seat in seats} == {0, 1}


@pytest.mark.parametrize("trouble", WRITE_TROUBLES)
def test_a_segment_that_meets_trouble_is_journaled_once(trouble: Trouble) -> None:
    store = TroubledStore()
    shell = Shell(SPEC, store)

    async def story() -> None:
        await shell.open()
        await _two_seats(shell)
        plan = [trouble, trouble]
        store.troubles = lambda key: plan.pop() if plan and "/journal/" in key else Trouble.NONE
        reply = await shell.finish(NODES[0], 1)
        assert msgspec.json.decode(reply.body, type=Ack).epoch == 1
        assert trouble in store.suffered, "the fault must have fired"
        await shell.close()

    in_virtual_time(store, story)
    assert [type(record) for record in read_journal(store, "j")].count(NodeFinished) == 1
    assert fold(read_journal(store, "j")).nodes[NODES[0]].phase is NodePhase.FINISHED


@pytest.mark.parametrize("trouble", WRITE_TROUBLES)
def test_a_manifest_that_meets_trouble_is_committed(trouble: Trouble) -> None:
    store = TroubledStore()
    shell = Shell(SPEC, store)

    async def story() -> None:
        await shell.open()
        await _two_seats(shell)
        plan = [trouble]
        store.troubles = lambda key: plan.pop() if plan and "manifest" in key else Trouble.NONE
        committed = ""
        while not committed:
            committed = msgspec.json.decode((await shell.persist(NODES[0], 1, 7)).body, type=Ack).committed
        assert trouble in store.suffered, "the fault must have fired"
        assert committed in store.objects
        await shell.close()

    in_virtual_time(store, story)


def test_after_a_commit_the_checkpoints_that_need_not_stay_are_deleted() -> None:
    store = TroubledStore()
    shell = Shell(replace(SPEC, keep_last=2, keep_every=5), store)

    async def story() -> None:
        await shell.open()
        await _two_seats(shell)
        for iteration in range(4, 9):
            store.objects[f"jobs/j/checkpoints/000001-{iteration:09d}/rank-00000.safetensors"] = b"x"
            while not msgspec.json.decode((await shell.persist(NODES[0], 1, iteration)).body, type=Ack).committed:
                pass
        await passes(1)
        await shell.close()

    in_virtual_time(store, story)
    folders_left = {key.split("/")[3] for key in store.objects if key.startswith("jobs/j/checkpoints/")}
    assert folders_left == {"000001-000000005", "000001-000000007", "000001-000000008"}


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_commit_sweeps_what_killed_writers_left_and_tells_once_that_it_may_not(
    is_refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Swept(TroubledStore):
        def sweep(self, prefix: str, dry_run: bool = False) -> Iterator[Entry]:
            assert not dry_run
            swept.append(prefix)
            if is_refused:
                raise StoreError("refuses to LIST with these credentials")
            return iter(())

    swept: list[str] = []
    store = Swept()
    shell = Shell(replace(SPEC, keep_last=1), store)

    async def story() -> None:
        await shell.open()
        await _two_seats(shell)
        for iteration in (4, 5):
            store.objects[f"jobs/j/checkpoints/000001-{iteration:09d}/rank-00000.safetensors"] = b"x"
            while not msgspec.json.decode((await shell.persist(NODES[0], 1, iteration)).body, type=Ack).committed:
                pass
        await passes(10)
        await shell.close()

    in_virtual_time(store, story)
    assert swept == ["jobs/j/checkpoints/"] * 2
    assert caplog.text.count("what killed writers left in the store was not deleted: refuses to LIST") == is_refused
    assert not [key for key in store.objects if "000001-000000004" in key], "checkpoints are deleted all the same"


def test_nothing_is_deleted_before_the_commit_that_replaces_it_is_journaled() -> None:
    """Else the next master would commit it again, with objects that are gone."""
    store = TroubledStore()
    shell = Shell(replace(SPEC, keep_last=1), store)
    old, newest = (f"jobs/j/checkpoints/000001-{iteration:09d}" for iteration in (4, 5))

    def troubles(key: str) -> Trouble:
        return Trouble.REFUSED if "/journal/" in key and f"{newest}/manifest.json" in store.objects else Trouble.NONE

    async def story() -> None:
        await shell.open()
        await _two_seats(shell)
        for folder in (old, newest):
            store.objects[f"{folder}/rank-00000.safetensors"] = b"x"
        while not msgspec.json.decode((await shell.persist(NODES[0], 1, 4)).body, type=Ack).committed:
            pass
        store.troubles = troubles
        persisting = asyncio.create_task(shell.persist(NODES[0], 1, 5))
        await passes(20)
        assert Trouble.REFUSED in store.suffered, "the fault must have fired"
        assert f"{old}/rank-00000.safetensors" in store.objects
        store.troubles = lambda key: Trouble.NONE
        await persisting
        await passes(10)
        assert f"{old}/rank-00000.safetensors" not in store.objects
        assert list(shell.brain.state.checkpoints) == [(1, 5)], "a round must not begin from what is gone"
        await shell.close()

    in_virtual_time(store, story)


def test_nothing_is_deleted_before_the_journal_has_forgotten_it() -> None:
    """Else a round of the next master would begin from what is gone."""
    store = TroubledStore()
    shell = Shell(replace(SPEC, keep_last=1), store)
    old, newest = (f"jobs/j/checkpoints/000001-{iteration:09d}" for iteration in (4, 5))

    def troubles(key: str) -> Trouble:
        journal_bytes = b"".join(data for name, data in store.objects.items() if "/journal/" in name)
        return (
            Trouble.REFUSED
            if "/journal/" in key and f"{newest}/manifest.json".encode() in journal_bytes
            else Trouble.NONE
        )

    async def story() -> None:
        await shell.open()
        await _two_seats(shell)
        store.troubles = troubles
        for folder, iteration in ((old, 4), (newest, 5)):
            store.objects[f"{folder}/rank-00000.safetensors"] = b"x"
            while not msgspec.json.decode((await shell.persist(NODES[0], 1, iteration)).body, type=Ack).committed:
                pass
        await passes(20)
        assert Trouble.REFUSED in store.suffered, "the fault must have fired"
        assert f"{old}/rank-00000.safetensors" in store.objects
        store.troubles = lambda key: Trouble.NONE
        await passes(20)
        assert f"{old}/rank-00000.safetensors" not in store.objects
        await shell.close()

    in_virtual_time(store, story)


def test_a_late_shard_does_not_commit_what_was_taken_for_debris(caplog: pytest.LogCaptureFixture) -> None:
    store = TroubledStore()
    shell = Shell(SPEC, store)

    async def story() -> None:
        await shell.open()
        await _two_seats(shell)
        store.objects["jobs/j/checkpoints/000001-000000005/rank-00000.safetensors"] = b"x"
        for iteration in (5, 4):
            await shell.persist(NODES[0], 1, iteration)
        await passes(1)
        assert "iteration 4 is not committed" in caplog.text
        committed = {place for place, checkpoint in shell.brain.state.checkpoints.items() if checkpoint.manifest}
        assert committed == {(1, 5)}
        await shell.close()

    in_virtual_time(store, story)
    assert not [key for key in store.objects if "000004/manifest" in key]


def test_who_reports_a_shard_of_a_checkpoint_that_newer_ones_have_replaced_is_told_so_at_once() -> None:
    store = TroubledStore()
    shell = Shell(replace(SPEC, keep_last=1), store)

    async def story() -> None:
        await shell.open()
        await _two_seats(shell)
        store.objects["jobs/j/checkpoints/000001-000000004/rank-00000.safetensors"] = b"x"
        waiting = asyncio.create_task(shell.persist(NODES[0], 1, 4, shards=2))
        await passes(0.1)
        store.objects["jobs/j/checkpoints/000001-000000005/rank-00000.safetensors"] = b"x"
        await shell.persist(NODES[0], 1, 5)
        began = asyncio.get_running_loop().time()
        late = await shell.persist(NODES[1], 1, 4, shards=2)
        for reply in (await waiting, late):
            assert msgspec.json.decode(reply.body, type=Ack).is_overtaken
        assert asyncio.get_running_loop().time() - began < 1
        assert shell.brain.state.forgotten == (1, 4)
        await shell.close()

    in_virtual_time(store, story)


def test_nothing_is_shown_before_it_is_durable() -> None:
    store = TroubledStore()
    shell = Shell(SPEC, store)

    async def story() -> None:
        await shell.open()
        store.troubles = lambda key: Trouble.SLOW if "/journal/" in key else Trouble.NONE
        joins = [asyncio.create_task(shell.join(node)) for node in NODES]
        while shell.brain.core.state.round is None:
            await passes(0)
        assert shell.brain.state.round is None
        assert (await shell.beat(NODES[0], 0)).status == 200
        await asyncio.gather(*joins)
        assert shell.brain.state.round is not None
        assert Trouble.SLOW in store.suffered
        await shell.close()

    in_virtual_time(store, story)


def test_a_store_that_fails_for_good_ends_the_master_with_its_error() -> None:
    store = TroubledStore()
    shell = Shell(SPEC, store)

    async def story() -> None:
        await shell.open()
        store.troubles = lambda key: Trouble.REFUSED
        began = asyncio.get_running_loop().time()
        joining = asyncio.create_task(shell.join(NODES[0]))
        assert isinstance(await shell.wait_for_failure(), StoreError)
        assert asyncio.get_running_loop().time() - began > PATIENCE_S - 10
        joining.cancel()

    in_virtual_time(store, story)


def test_an_idle_master_that_slept_through_a_takeover_ends_by_itself() -> None:
    store = TroubledStore()
    old, new = Shell(SPEC, store), Shell(SPEC, store)

    async def story() -> None:
        await old.open()
        await _two_seats(old)
        await new.open()
        assert "written by another master" in str(await old.wait_for_failure())
        assert (await new.finish(NODES[0], 1)).status == 200
        await new.close()

    in_virtual_time(store, story)


def test_what_a_replaced_master_still_answers_carries_its_old_epoch() -> None:
    store = TroubledStore()
    old, new = Shell(SPEC, store), Shell(SPEC, store)

    async def story() -> None:
        await old.open()
        await _two_seats(old)
        await new.open()
        replies = [await shell.beat(NODES[0], 1) for shell in (old, new)]
        assert [msgspec.json.decode(reply.body, type=Directive).epoch for reply in replies] == [1, 2]
        await old.close()
        await new.close()

    in_virtual_time(store, story)


def test_a_new_master_gives_every_node_its_whole_time_to_be_heard() -> None:
    store = TroubledStore()
    spec = msgspec.structs.replace(SPEC, patience=Patience(silence_s=20.0, join_timeout_s=1e6))
    old, new = Shell(spec, store), Shell(spec, store)

    async def story() -> None:
        await old.open()
        await _two_seats(old)
        await old.close()
        await passes(1000)
        await new.open()
        opened = asyncio.get_running_loop().time()
        while new.brain.state.nodes[NODES[1]].phase is NodePhase.RUNNING:
            assert new.brain.state.nodes[NODES[0]].phase is NodePhase.RUNNING
            await new.beat(NODES[0], 1)
        assert 20 <= asyncio.get_running_loop().time() - opened <= 20 + HEARTBEAT_POLL_S
        assert new.brain.state.nodes[NODES[1]].phase is NodePhase.LOST
        await new.close()

    in_virtual_time(store, story)


@settings(max_examples=examples(60))
@given(seed=st.integers(0, 2**32))
@example(seed=339872)  # A shard is reported after its checkpoint was forgotten.
def test_whatever_the_store_does_what_was_acknowledged_is_journaled_and_ranks_are_given_once(seed: int) -> None:
    chance = random.Random(seed)
    store = TroubledStore(lambda key: chance.choice([*WRITE_TROUBLES, *[Trouble.NONE] * 4]))
    masters: list[Shell] = []
    stored: set[tuple[int, int]] = set()
    ranks: dict[tuple[int, int], str] = {}

    async def agent(node: str) -> None:
        after = 0
        while True:
            seat = await masters[-1].join(node, after)
            assert ranks.setdefault((seat.round, seat.group_rank), node) == node, "one rank, two nodes"
            after = seat.round
            for iteration in range(chance.randrange(3)):
                await passes(chance.random() * 20)
                master, place = masters[-1], (after, iteration)
                reply = await master.persist(node, *place)
                if reply.status == 200 and place > master.brain.state.forgotten:  # Else it came too late to count.
                    stored.add(place)

    async def one_master(seconds: float) -> None:
        fresh = Shell(SPEC, store)
        await fresh.open()
        masters.append(fresh)
        agents = [asyncio.create_task(agent(node)) for node in NODES]
        finished_tasks, _ = await asyncio.wait(
            [*agents, *fresh.tasks], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        assert not finished_tasks, [task.exception() for task in finished_tasks]
        for task in agents:
            task.cancel()
        await asyncio.gather(*agents, return_exceptions=True)

    async def story() -> None:
        for _ in range(3):
            await one_master(chance.random() * 200)
        for zombie in masters[:-1]:
            assert isinstance(await zombie.wait_for_failure(), Fenced)
        brain = masters[-1].brain
        while brain.state is not brain.core.state:
            await brain.wait_until_durable()
        assert brain.state == fold(read_journal(store, "j"))
        await masters[-1].close()

    with patch.object(snapshots, "MAX_RECORDS", 20):
        in_virtual_time(store, story)
    records = list(read_journal(store, "j"))
    numbers = [record.round.number for record in records if isinstance(record, RoundFormed)]
    assert numbers == list(range(1, len(numbers) + 1))
    persisted = Counter((r.holding.round, r.holding.iteration) for r in records if isinstance(r, ShardPersisted))
    assert stored <= set(persisted)
    assert set(persisted.values()) <= {1}
