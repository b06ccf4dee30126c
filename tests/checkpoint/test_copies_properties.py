"""Any order of stages, copies, persists, deaths of ranks and losses of nodes: one state is always whole in memory."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from runtime.checkpoint.held import COPY_SLOTS
from runtime.checkpoint.slots import KEPT_SHARDED, Identity, SlotTable
from runtime.job.messages import Holding
from runtime.job.restore import choose

SLOTS = 3


@dataclass
class Rank:
    """One rank of a node of its own: its slots, and those for the copies of the rank before it."""

    own: SlotTable = field(default_factory=lambda: SlotTable(SLOTS + 1, KEPT_SHARDED))
    copies: SlotTable = field(default_factory=lambda: SlotTable(COPY_SLOTS))
    staged: int = 0
    copied: int = -1
    stages: int = 0
    writing: int | None = None
    copying: tuple[int, int] | None = None
    """Own slot, pinned, and the slot at the peer."""
    restored: int | None = None
    """Pinned until the second stage."""


class Ranks(RuleBasedStateMachine):
    """Ranks in step, as collectives make them: none works on an iteration before all have staged the last one."""

    @initialize(count=st.integers(2, 4))
    def begin(self, count: int) -> None:
        self.ranks = [Rank() for _ in range(count)]
        self.round = 1
        self.start: tuple[int, int] = (0, 0)
        self.readers: list[tuple[Rank, int]] = []

    def pick(self, which: int) -> tuple[int, Rank]:
        return which % len(self.ranks), self.ranks[which % len(self.ranks)]

    def identity(self, number: int, iteration: int) -> Identity:
        return Identity(self.round, iteration, number, len(self.ranks))

    @rule(which=st.integers(0, 3))
    def begins_to_stage(self, which: int) -> None:
        number, rank = self.pick(which)
        if rank.writing is None and rank.copying is None and all(r.staged >= rank.staged for r in self.ranks):
            rank.writing = rank.own.acquire(self.identity(number, rank.staged + 1))

    @rule(which=st.integers(0, 3))
    def has_staged(self, which: int) -> None:
        number, rank = self.pick(which)
        if rank.writing is not None:
            slot, rank.writing = rank.writing, None
            rank.own.stage(slot, 1)
            rank.staged += 1
            rank.stages += 1
            if rank.stages > 1 and rank.restored is not None:
                rank.own.unpin(rank.restored)
                rank.restored = None
            self.copy(number, slot)

    def copy(self, number: int, slot: int) -> None:
        rank, peer = self.ranks[number], self.ranks[(number + 1) % len(self.ranks)]
        identity = rank.own[slot].identity
        assert identity is not None
        if peer.copies.find(identity) is not None:
            rank.copied = identity.iteration
            return
        place = peer.copies.acquire(identity)
        assert place is not None
        rank.own.pin(slot)
        rank.copying = slot, place

    @rule(which=st.integers(0, 3))
    def is_copied(self, which: int) -> None:
        number, rank = self.pick(which)
        if rank.copying is not None:
            slot, place = rank.copying
            rank.copying = None
            rank.own.unpin(slot)
            self.ranks[(number + 1) % len(self.ranks)].copies.stage(place, 1)
            identity = rank.own[slot].identity
            assert identity is not None
            rank.copied = identity.iteration

    @rule(copied=st.sets(st.integers(0, 3)), iterations=st.integers(1, 5))
    def iterations_go_by(self, copied: set[int], iterations: int) -> None:
        """As far as they can while only these ranks' copies arrive."""
        for _ in range(iterations):
            for number in range(len(self.ranks)):
                self.begins_to_stage(number)
                self.has_staged(number)
            for number in copied:
                self.is_copied(number)

    @rule(which=st.integers(0, 3), slot=st.integers(0, SLOTS))
    def is_being_persisted(self, which: int, slot: int) -> None:
        rank = self.pick(which)[1]
        if slot in rank.own.whole() and len(self.readers) < 3:
            rank.own.pin(slot)
            self.readers.append((rank, slot))

    @rule(which=st.integers(0, 5))
    def is_persisted(self, which: int) -> None:
        if self.readers:
            rank, slot = self.readers.pop(which % len(self.readers))
            rank.own.unpin(slot)

    @rule(which=st.integers(0, 3))
    def a_worker_dies(self, which: int) -> None:
        staged = min(rank.staged for rank in self.ranks)
        least = (self.round, staged) if all(rank.stages for rank in self.ranks) else self.start
        self.end_round()
        self.restore(least)

    @rule(which=st.integers(0, 3))
    def a_node_is_lost(self, which: int) -> None:
        number, rank = self.pick(which)
        if min(r.copied for r in self.ranks) < 0:
            return  # A second loss, before what the round started from is copied.
        copied = min(r.copied for r in self.ranks)
        least = (self.round, copied) if copied > self.start[1] else self.start
        self.end_round()
        self.readers = [(reader, slot) for reader, slot in self.readers if reader is not rank]
        self.ranks[number] = Rank()
        self.restore(least)

    def end_round(self) -> None:
        for number, rank in enumerate(self.ranks):
            if rank.writing is not None:
                rank.own.abandon(rank.writing)
            if rank.copying is not None:
                rank.own.unpin(rank.copying[0])
                self.ranks[(number + 1) % len(self.ranks)].copies.abandon(rank.copying[1])
            if rank.restored is not None:
                rank.own.unpin(rank.restored)
            rank.writing = rank.copying = rank.restored = None

    def restore(self, least: tuple[int, int]) -> None:
        """What is restored is one (round, iteration) for all, and none that all had is lost."""
        held = [
            Holding(*identity, node=f"n{number}")
            for number, rank in enumerate(self.ranks)
            for table in (rank.own, rank.copies)
            for slot in table.whole()
            if (identity := table[slot].identity)
        ]
        found = choose(held)
        self.round += 1
        if found is None:
            assert least == (0, 0)
            self.start = (0, 0)
        else:
            assert (found.round, found.iteration) >= least
            assert {(s.round, s.iteration) for s in found.sources} == {(found.round, found.iteration)}
            assert {s.shard for s in found.sources} == set(range(len(self.ranks)))
            self.start = found.round, found.iteration
        for rank in self.ranks:
            for slot in rank.copies.whole():
                if (identity := rank.copies[slot].identity) and self.start < identity[:2]:
                    rank.copies.drop(slot)
        for number, rank in enumerate(self.ranks):
            rank.staged, rank.copied, rank.stages = self.start[1], -1, 0
            if found is not None:
                self.bring(number, Identity(*self.start, number, len(self.ranks)))

    def bring(self, number: int, identity: Identity) -> None:
        rank = self.ranks[number]
        if rank.own.find(identity) is None:
            slot = rank.own.acquire(identity)
            while slot is None:
                self.is_persisted(0)
                slot = rank.own.acquire(identity)
            rank.own.stage(slot, 1)
        rank.restored = rank.own.find(identity)
        assert rank.restored is not None
        rank.own.pin(rank.restored)
        self.copy(number, rank.restored)


Ranks.TestCase.settings = settings(max_examples=40, stateful_step_count=60)
test_whatever_one_node_is_lost_or_worker_dies_a_state_of_all_ranks_is_whole_in_memory = Ranks.TestCase
