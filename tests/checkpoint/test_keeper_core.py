"""The keeper's decisions over every order of events, in virtual time: nothing is torn, lost, or awaited for ever."""

import random
from typing import Any, get_args

import pytest

from everstep.runtime.checkpoint.node.core import events
from everstep.runtime.checkpoint.node.core.actions import PutObject, Refuse
from everstep.runtime.checkpoint.node.core.keeper_core import KeeperCore, Phase
from everstep.runtime.checkpoint.node.core.options import DEATH_S, RESTORE_S, KeeperOptions
from everstep.runtime.checkpoint.node.core.segments import Reader
from everstep.runtime.protocol.holdings import Flaw, Holding, Restore
from tests.checkpoint.keeper_world import NODE, PEER, World, identity_of, name_of
from tests.examples import examples

LENGTH = 120
"""Events of one order: many of a worker's stages lie between two rounds."""


class Explorer:
    """Two workers, a peer that reads and sends copies, a store that fails, memory that comes or does not: one random
    order of events, the same one for the same seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(sharded=self.chance.random() < 0.5, certifies=self.chance.choice([0, 1, 2]))

    def run(self) -> None:
        """Every invariant holds after each event, and everything comes to rest at the end."""
        usual = (self.a_worker_wants_a_slot, self.a_worker_stages, self.a_work_ends)
        often = (self.a_reader_goes, self.a_checkpoint_is_committed, self.a_worker_announces, self.a_peer_reads,
                 self.a_state_is_certified)  # fmt: skip
        seldom = (
            self.a_round_begins, self.a_worker_dies, self.a_worker_asks_what_to_start_from, self.somebody_flushes,
            self.the_newest_is_to_be_persisted, self.the_queue_is_to_be_drained,
            self.a_master_wants_to_know_what_is_held, self.a_peer_has_a_copy_kept,
            self.time_goes_by, self.all_that_is_under_way_ends,
        )  # fmt: skip
        steps = [*usual * 9, *often * 3, *seldom]
        self.a_round_begins()
        for _ in range(LENGTH):
            self.chance.choice(steps)()
            self.look()
        if self.chance.random() < 0.2:
            self.the_node_leaves()
        self.come_to_rest()

    def a_round_begins(self) -> None:
        world, chance, restore = self.world, self.chance, None
        if world.closed:
            return
        world_size = chance.choice([2, 2, 2, 3])
        newest = sorted({identity[:2] + identity[3:] for identity in world.known}, reverse=True)[:4]
        if newest and chance.random() < 0.8:
            round_, iteration, shards = chance.choice(newest)
            places = chance.sample(["own", "peer", "store"], chance.randint(1, 3))
            digest = chance.choice(["digest", "digest", ""])
            facts: dict[str, dict[str, Any]] = {"own": {"node": NODE}, "peer": {"node": PEER}, "store": {"key": "key"}}
            of = [
                Holding(
                    round_,
                    iteration,
                    shard,
                    shards,
                    4096,
                    digest=digest,
                    **facts[place],
                )
                for shard in range(shards)
                for place in places
            ]
            restore = Restore(round_, iteration, tuple(of), "")
        peers = tuple(f"127.0.0.1:{9 + n}" for n in range(chance.choice([0, 1, 1, 2])))
        world.begin(restore, peers, chance.random() < 0.7, world_size)

    def rank(self) -> int:
        return self.chance.randint(0, 1)

    def alive(self, rank: int) -> bool:
        return self.world.workers[rank].alive and not self.world.closed

    def asks(self, kind: type, rank: int) -> bool:
        """Does that worker wait for an answer? It asks one thing at a time."""
        waiting = self.world.waiting.values()
        return any(isinstance(question, kind) and getattr(question, "local_rank", -1) == rank for question in waiting)

    def a_worker_announces(self) -> None:
        rank, pages = self.rank(), self.chance.choice([1, 1, 1, 1, 1, 1, 2, 0])
        if self.alive(rank) and not self.asks(events.Acquire, rank):
            announce = (rank, 4096 * pages, self.world.sharded, self.chance.random() < 0.2)
            answer = self.world.ask(lambda ticket: events.Announce(ticket, *announce))
            assert answer in self.world.memory or (announce[-1] and answer == "waits")
            self.world.workers[rank].announced = True

    def a_worker_wants_a_slot(self) -> None:
        rank, waits = self.rank(), self.chance.random() < 0.7
        worker = self.world.workers[rank]
        if self.alive(rank) and worker.announced and not worker.granted and not self.asks(events.Acquire, rank):
            slot_question = (rank, worker.iteration + 1, waits)
            answer = self.world.ask(lambda ticket: events.Acquire(ticket, *slot_question))
            assert waits or answer != "waits"

    def a_worker_stages(self) -> None:
        rank, persist, flaw = self.rank(), self.chance.random() < 0.2, "no shard" if self.chance.random() < 0.05 else ""
        if self.alive(rank) and self.world.workers[rank].granted:
            self.world.stage(rank, persist, flaw)

    def all_that_is_under_way_ends(self) -> None:
        self.world.settle()

    def a_worker_dies(self) -> None:
        self.world.bury(self.rank())

    def a_worker_asks_what_to_start_from(self) -> None:
        rank = self.rank()
        if self.alive(rank):
            self.world.ask(lambda ticket: events.WaitForRestore(ticket, rank))

    def somebody_flushes(self) -> None:
        rank, back = self.rank(), self.chance.randint(0, 2)
        worker = self.world.workers[rank]
        if self.alive(rank) and worker.iteration > back:
            self.world.ask(lambda ticket: events.Flush(ticket, rank, worker.iteration - back))

    def the_newest_is_to_be_persisted(self) -> None:
        answer = self.world.ask(events.PersistNewest)
        assert answer == (None if self.world.round and not self.world.closed else "refused")

    def the_queue_is_to_be_drained(self) -> None:
        answer = self.world.ask(events.Drain)
        if answer != "waits":
            assert answer == ("refused" if self.world.closed else None)

    def a_master_wants_to_know_what_is_held(self) -> None:
        self.world.ask(lambda ticket: events.ListHoldings(ticket, "127.0.0.1:1"))

    def a_peer_has_a_copy_kept(self) -> None:
        shard, round_ = self.chance.randint(0, 2), max(1, self.world.round - self.chance.randint(0, 1))
        iteration, pages = self.world.start[1] + self.chance.randint(1, 3), self.chance.choice([1, 1, 2])
        digest = self.chance.choice(["digest", "digest", ""])
        source = Holding(round_, iteration, shard, 3, 4096 * pages, node=PEER, digest=digest)
        copies = self.chance.choice([1, 1, 2])
        self.world.ask(lambda ticket: events.CopyShard(ticket, source, copies))

    def a_peer_reads(self) -> None:
        if not self.world.known:
            return
        round_, iteration, shard, _ = self.chance.choice(sorted(self.world.known)[-6:])
        self.world.ask(lambda ticket: events.OpenShard(ticket, round_, iteration, shard))

    def a_reader_goes(self) -> None:
        if self.world.readers:
            ticket = self.chance.choice(sorted(self.world.readers))
            del self.world.readers[ticket]
            self.world.feed(events.ReaderGone(ticket))

    def a_work_ends(self) -> None:
        if self.world.works:
            self.world.end_work(self.chance.randint(0, 9), self.chance.random() < 0.9, self.chance.choice(list(Flaw)))

    def a_checkpoint_is_committed(self) -> None:
        if not self.world.persisted:
            return
        holding = self.world.persisted.pop(self.chance.randrange(len(self.world.persisted)))
        self.world.feed(events.CheckpointCommitted(identity_of(holding), "manifest"))

    def a_state_is_certified(self) -> None:
        if self.world.told:
            self.world.certify(self.chance.randint(0, 9))

    def time_goes_by(self) -> None:
        until = self.world.now + self.chance.choice([0.1, 1.0, 5.0, 40.0])
        while (deadline := self.world.core.next_deadline()) is not None and deadline <= until:
            self.world.now = max(deadline, self.world.now)
            self.world.feed(events.Tick())
        self.world.now = until

    def the_node_leaves(self) -> None:
        self.world.closed = True
        self.world.feed(events.NodeLeaving())
        assert self.world.waiting == {}
        assert self.world.memory == {}
        for worker in self.world.workers:
            worker.granted = None

    def look(self) -> None:
        """Every invariant holds."""
        self.a_slot_that_is_read_is_never_written()
        self.every_pin_has_its_reader()
        self.what_is_offered_is_whole()
        self.the_newest_states_of_each_rank_are_kept()
        self.what_is_in_the_store_was_staged()
        self.the_newest_certified_state_of_each_rank_is_kept()

    def a_slot_that_is_read_is_never_written(self) -> None:
        assert not self.world.read() & self.world.written()

    def every_pin_has_its_reader(self) -> None:
        segments = self.world.core.segments
        counted = {id(segment.table): [0] * len(segment.table) for segment in segments.all()}
        for pin in segments.pins:
            counted.setdefault(id(pin.segment.table), [0] * len(pin.segment.table))[pin.slot] += 1
        for segment in segments.all():
            assert [segment.table[slot].pins for slot in range(len(segment.table))] == counted[id(segment.table)]

    def what_is_offered_is_whole(self) -> None:
        for segment in self.world.core.segments.all():
            for slot in segment.table.complete():
                assert self.world.bytes[segment.number, slot] == segment.table[slot].identity

    def the_newest_states_of_each_rank_are_kept(self) -> None:
        """Staged or fetched: what a round starts from counts like a state that was staged."""
        world = self.world
        for rank, arrived in world.arrived.items() if not world.closed else ():
            if rank < 0:
                continue  # Copies of other nodes' shards.
            for identity in sorted(arrived)[-1 - world.sharded :]:
                assert world.core.segments.find(identity, rank) or identity in world.damaged

    def the_newest_certified_state_of_each_rank_is_kept(self) -> None:
        world = self.world
        for rank, identity in world.certified.items() if not world.closed else ():
            assert world.core.segments.find(identity, rank) or identity in world.damaged

    def what_is_in_the_store_was_staged(self) -> None:
        assert self.world.stored <= {identity for staged in self.world.staged.values() for identity in staged}

    def come_to_rest(self) -> None:
        """Liveness: when all that is under way has ended, nobody waits but for another round, and nothing is read."""
        world = self.world
        world.settle()
        kinds = {type(question) for question in world.waiting.values()}
        assert kinds <= ({events.WaitForRestore} if world.unrestored else set())
        assert {pin.reader for pin in world.core.segments.pins} <= {Reader.START, Reader.COMPARE, Reader.CERTIFIED}
        assert not world.core.segments._claimed
        if not world.closed:
            world.begin(None, (), persists=True, world_size=2)
            world.settle()
            assert world.waiting == {}
            assert not world.core.segments.pins


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_no_order_of_events_tears_or_loses_a_state_or_leaves_somebody_waiting(first: int) -> None:
    for seed in range(examples(first), examples(first + 50)):
        try:
            Explorer(seed).run()
        except Exception as error:
            error.add_note(f"order {seed}")
            raise


@pytest.mark.parametrize("ending", ["memory", "no memory", "another state"])
def test_who_waits_for_memory_is_answered_when_all_of_it_is_there_or_no_more_comes(ending: str) -> None:
    world = World()
    assert world.ask(lambda ticket: events.Announce(ticket, 0, 4096, sharded=False, waits=True)) == "waits"
    match ending:
        case "memory":
            while world.waiting:
                world.end_work(0)
            assert world.works == []
        case "no memory":
            world.end_work(0, well=False)
        case "another state":
            world.ask(lambda ticket: events.Announce(ticket, 0, 8192, sharded=False))
    assert world.waiting == {}


@pytest.mark.parametrize("waits", [True, False])
def test_a_put_that_fails_is_tried_again_while_somebody_waits_for_the_state_until_patience_ends(waits: bool) -> None:
    world = World()
    world.begin(None, (), persists=True, world_size=2)
    world.ask(lambda ticket: events.Announce(ticket, 0, 4096, sharded=False))
    world.settle()
    world.ask(lambda ticket: events.Acquire(ticket, 0, 1, waits=True))
    world.stage(0, persist=True)
    if waits:
        assert world.ask(lambda ticket: events.Flush(ticket, 0, 1)) == "waits"
    began, tries = world.now, 0
    while world.works or world.core.next_deadline() is not None:
        if not world.works:
            world.now = max(world.now, world.core.next_deadline() or 0.0)
            world.feed(events.Tick())
            continue
        is_put = isinstance(world.works[0], PutObject)
        tries += is_put
        world.end_work(0, well=not is_put)
    assert tries == (5 if waits else 1)  # After 0, 0.1, 0.3, 0.7 and 1.5 s.
    assert world.now - began == pytest.approx(1.5 if waits else 0.0)
    assert world.waiting == {}


QUESTIONS = {
    events.Announce: (0, 4096, False), events.Acquire: (0, 1, True), events.WaitForRestore: (0,), events.Flush: (0, 1),
    events.CommitStage: (0, 0, 1, 1, False, "", ""), events.PersistNewest: (), events.Drain: (),
    events.CopyShard: (Holding(1, 1),),
}  # fmt: skip


@pytest.mark.parametrize("kind", QUESTIONS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("phase", [Phase.NEW, Phase.CLOSED], ids=lambda phase: phase.name)
def test_a_question_that_the_phase_does_not_take_is_refused_with_its_text(kind: type, phase: Phase) -> None:
    core = KeeperCore(KeeperOptions("job", NODE, 1), name_of)
    if phase is Phase.CLOSED:
        core.handle(events.NodeLeaving(), 0.0)
    refusals = [action for action in core.handle(kind(7, *QUESTIONS[kind]), 1.0) if isinstance(action, Refuse)]
    refused_texts = [(refusal.ticket, str(refusal.error)) for refusal in refusals] == [(7, phase.value)]
    assert refused_texts == (phase not in core.table[kind].phases)


def test_the_table_lists_every_event() -> None:
    kinds = {kind for union in (events.Question, events.Fact, events.WorkEnd) for kind in get_args(union)}
    assert set(KeeperCore(KeeperOptions("job", NODE, 1), name_of).table) == kinds


def after_a_death(restored: bool) -> World:
    """A worker has staged one state and died; a round begins that starts from it, or none begins."""
    world = World()
    world.begin(None, (), persists=True, world_size=2)
    world.ask(lambda ticket: events.Announce(ticket, 0, 4096, sharded=False))
    world.settle()
    world.ask(lambda ticket: events.Acquire(ticket, 0, 1, waits=True))
    world.stage(0, persist=False)
    world.settle()
    world.bury(0)
    if restored:
        held = Holding(1, 1, size=4096, digest="digest", node=NODE)
        world.begin(Restore(1, 1, (held,), ""), (), persists=True, world_size=2)
    return world


def puts(world: World) -> int:
    while world.works and not isinstance(world.works[0], PutObject):
        world.end_work(0)
    return sum(isinstance(work, PutObject) for work in world.works)


def test_what_a_dead_worker_staged_goes_to_the_store_after_the_restore_and_not_beside_it() -> None:
    world = after_a_death(restored=True)
    assert world.ask(lambda ticket: events.Announce(ticket, 0, 4096, sharded=False)) != "refused"
    world.ask(lambda ticket: events.WaitForRestore(ticket, 0))
    world.now += DEATH_S
    world.feed(events.Tick())
    assert puts(world) == 0
    assert world.waiting == {}  # The worker has its state.
    world.ask(lambda ticket: events.Acquire(ticket, 0, 3, waits=True))  # The interval does not want iteration 3.
    world.stage(0, persist=False)
    assert puts(world) == 1
    world.settle()
    assert {identity[:2] for identity in world.stored} == {(1, 1)}


@pytest.mark.parametrize("what", ["time", "drain", "newest", "a slow restore"])
def test_the_store_gets_it_anyway_if_no_round_follows_or_somebody_waits_for_it(what: str) -> None:
    world = after_a_death(restored=what == "a slow restore")
    assert puts(world) == 0
    match what:
        case "drain":
            assert world.ask(events.Drain) == "waits"
        case "newest":
            world.ask(events.PersistNewest)
        case _:
            deadline = world.core.next_deadline()
            assert deadline == world.now + (DEATH_S if what == "time" else RESTORE_S)
            world.now += DEATH_S if what == "time" else RESTORE_S
            world.feed(events.Tick())
    assert puts(world) == 1
