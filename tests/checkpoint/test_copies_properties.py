"""Any order of stages, copies, persists, commits, deaths of ranks, losses of as many nodes as there are copies, masters
that die, rounds of another size: one state is always whole, and what is restored is one (round, iteration) for all."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from everstep.runtime.checkpoint.node.core.slots import KEPT_SHARDED, Identity, SlotTable, copy_slots
from everstep.runtime.checkpoint.stored.retention import DEBRIS_S, RetentionPolicy, StoredObjects, surplus
from everstep.runtime.job.checkpoints import Checkpoints, with_manifest, with_shard
from everstep.runtime.job.restore import choose_restore
from everstep.runtime.protocol.holdings import Holding
from tests.examples import examples

SLOTS = 3


@dataclass
class Rank:
    """One rank of a node of its own: its slots, those of a state that was cut otherwise, and those for copies of other
    shards."""

    own: SlotTable = field(default_factory=lambda: SlotTable(SLOTS + 1, KEPT_SHARDED))
    earlier: list[SlotTable] = field(default_factory=list)
    copies: dict[tuple[int, int], SlotTable] = field(default_factory=dict)
    """By shard and number of slots."""
    staged: int = 0
    copied: int = -1
    stages: int = 0
    writing: int | None = None
    copying: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By keeper: the own slot, pinned, and the slot there."""
    restored: int | None = None
    """Pinned until the second stage."""

    def tables(self) -> list[SlotTable]:
        return [self.own, *self.earlier, *self.copies.values()]

    def forget(self, round_: int) -> None:
        """After a stage: what lies elsewhere now."""
        if len(self.own.complete()) >= KEPT_SHARDED:
            self.earlier = [t for t in self.earlier if any(t[slot].pins for slot in range(len(t)))]
        if self.stages == 3:
            for shard, table in list(self.copies.items()):
                newest = table.newest()
                identity = table[newest].identity if newest is not None else None
                if not table.writing() and (identity is None or identity.round < round_):
                    del self.copies[shard]


class Ranks(RuleBasedStateMachine):
    """Ranks in step, as collectives make them: none works on an iteration before all have staged the last one."""

    @initialize(count=st.integers(2, 5), copies=st.integers(1, 3))
    def begin(self, count: int, copies: int) -> None:
        self.wanted_copies = copies
        self.ranks = [Rank() for _ in range(count)]
        self.round = 1
        self.start: tuple[int, int] = (0, 0)
        self.readers: list[tuple[Rank, SlotTable, int]] = []
        self.objects: set[Identity] = set()
        """What lies in the store."""
        self.known: Checkpoints = {}
        """What the master has journaled of it."""
        self.manifests: dict[tuple[int, int], set[Identity]] = {}
        """What each of those that lie in the store names."""
        self.unjournaled = False
        """Did a master die between a manifest and its record?"""
        self.committed: set[tuple[int, int]] = set()
        """Ever; retention takes some away."""

    def pick(self, which: int) -> tuple[int, Rank]:
        return which % len(self.ranks), self.ranks[which % len(self.ranks)]

    @property
    def copies(self) -> int:
        """Nodes that keep a copy of each shard."""
        return min(self.wanted_copies, len(self.ranks) - 1)

    def table_at(self, keeper: int, number: int) -> SlotTable:
        """The slots of that rank's copies at a keeper of them."""
        slots = copy_slots(self.copies)
        return self.ranks[keeper].copies.setdefault((number, slots), SlotTable(slots, slots - 1))

    def identity(self, number: int, iteration: int) -> Identity:
        return Identity(self.round, iteration, number, len(self.ranks))

    @rule(which=st.integers(0, 4))
    def begins_to_stage(self, which: int) -> None:
        number, rank = self.pick(which)
        if rank.writing is None and not rank.copying and all(r.staged >= rank.staged for r in self.ranks):
            rank.writing = rank.own.acquire(self.identity(number, rank.staged + 1))

    @rule(which=st.integers(0, 4))
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
            rank.forget(self.round)

    def copy(self, number: int, slot: int) -> None:
        rank = self.ranks[number]
        identity = rank.own[slot].identity
        assert identity is not None
        for keeper in ((number + turn) % len(self.ranks) for turn in range(1, self.copies + 1)):
            table = self.table_at(keeper, number)
            if table.find(identity) is None:
                place = table.acquire(identity)
                assert place is not None
                rank.own.pin(slot)
                rank.copying[keeper] = slot, place
        if self.copies and not rank.copying:
            rank.copied = identity.iteration

    @rule(which=st.integers(0, 4), turn=st.integers(0, 2))
    def is_copied(self, which: int, turn: int) -> None:
        """One of the keepers has its copy."""
        number, rank = self.pick(which)
        if rank.copying:
            keeper = list(rank.copying)[turn % len(rank.copying)]
            slot, place = rank.copying.pop(keeper)
            rank.own.unpin(slot)
            self.table_at(keeper, number).stage(place, 1)
            identity = rank.own[slot].identity
            assert identity is not None
            if not rank.copying:
                rank.copied = identity.iteration

    @rule(copied=st.sets(st.integers(0, 4)), iterations=st.integers(1, 5))
    def iterations_go_by(self, copied: set[int], iterations: int) -> None:
        """As far as they can while only these ranks' copies arrive."""
        for _ in range(iterations):
            for number in range(len(self.ranks)):
                self.begins_to_stage(number)
                self.has_staged(number)
            for number in copied:
                while self.pick(number)[1].copying:
                    self.is_copied(number, 0)

    @rule(which=st.integers(0, 4), slot=st.integers(0, SLOTS))
    def is_being_persisted(self, which: int, slot: int) -> None:
        rank = self.pick(which)[1]
        if slot in rank.own.complete() and len(self.readers) < 3:
            rank.own.pin(slot)
            self.readers.append((rank, rank.own, slot))

    @rule(which=st.integers(0, 5), is_well=st.booleans())
    def is_persisted(self, which: int, is_well: bool) -> None:
        """The object lies in the store; the agent may die before it tells the master."""
        if self.readers:
            _, table, slot = self.readers.pop(which % len(self.readers))
            identity = table[slot].identity
            table.unpin(slot)
            assert identity is not None
            self.objects.add(identity)
            if is_well:
                self.tell(identity)

    def tell(self, identity: Identity) -> None:
        """The master journals that it lies in the store; what the one before it left whole it commits first."""
        if self.unjournaled:
            self.commits(is_written=True, journaled=True)
        self.known = with_shard(self.known, Holding(*identity, key=f"{identity}"))

    @rule(number_persisted=st.integers(0, 5), is_written=st.booleans(), journaled=st.booleans())
    def the_newest_state_of_all_is_persisted(self, number_persisted: int, is_written: bool, journaled: bool) -> None:
        """As the interval asks all ranks for it; the first so many agents tell the master."""
        self.iterations_go_by({0, 1, 2, 3, 4}, 1)
        newest = min(rank.staged for rank in self.ranks)
        for number, rank in enumerate(self.ranks):
            identity = self.identity(number, newest)
            if rank.stages and rank.own.find(identity) is not None:
                self.objects.add(identity)
                if number < number_persisted:
                    self.tell(identity)
        self.commits(is_written, journaled)

    @rule(is_written=st.booleans(), journaled=st.booleans())
    def commits(self, is_written: bool, journaled: bool) -> None:
        """A master that dies before the manifest, or between it and its record, leaves the rest to the next.

        Where a newer checkpoint is whole it looks first whether the objects are still there.
        """
        for place, checkpoint in self.known.items():
            if checkpoint.shards.is_complete and not checkpoint.manifest and is_written:
                held_identities = {Identity(*place, holding.shard, holding.shards) for holding in checkpoint.shards}
                if (
                    any(checkpoint.manifest for newer, checkpoint in self.known.items() if newer > place)
                    and not held_identities <= self.objects
                ):
                    continue
                self.manifests.setdefault(place, held_identities)
                self.committed.add(place)
                self.unjournaled = not journaled
                if journaled:
                    self.known = with_manifest(self.known, place, "manifest")

    @rule(last=st.integers(1, 2), old=st.booleans(), deletes=st.integers(0, 9))
    def old_checkpoints_are_deleted(self, last: int, old: bool, deletes: int) -> None:
        """By a master that has journaled all it committed, and that may die when it has deleted so much."""
        self.commits(is_written=True, journaled=True)
        checkpoints = {
            identity[:2]: StoredObjects(committed=identity[:2] in self.manifests) for identity in self.objects
        }
        for place in surplus(checkpoints, RetentionPolicy(last, started_from=self.start), 2 * DEBRIS_S * old):
            for identity in [None, *sorted(identity for identity in self.objects if identity[:2] == place)][:deletes]:
                if identity is None:
                    self.manifests.pop(place, None)
                self.objects.discard(identity or Identity(0, 0))

    @invariant()
    def a_manifest_names_only_what_is_there_whole(self) -> None:
        for identities in self.manifests.values():
            assert identities <= self.objects

    @invariant()
    def what_was_committed_once_is_still_there_or_a_newer_one(self) -> None:
        if self.committed:
            assert max(self.manifests) == max(self.committed)

    def stored(self) -> list[Holding]:
        """As the master tells it."""
        return [holding for checkpoint in self.known.values() for holding in checkpoint.shards]

    @rule(count=st.integers(1, 5))
    def everything_is_lost_but_the_store(self, count: int) -> None:
        self.end_round()
        self.readers.clear()
        self.ranks = [Rank() for _ in range(count)]
        self.restore(max((place for place in self.committed if place in self.known), default=(0, 0)))

    @rule(count=st.integers(1, 5))
    def a_round_of_another_size_begins(self, count: int) -> None:
        """Nodes that join hold nothing; those that leave have staged, and their memory is read until all have begun."""
        staged = min(rank.staged for rank in self.ranks)
        least = (self.round, staged) if all(rank.stages for rank in self.ranks) else self.start
        leaving = self.ranks[count:]
        self.end_round()
        if any(rank.copied < staged for rank in leaving) or len(leaving) > self.copies:
            least = max((place for place in self.committed if place in self.known), default=(0, 0))
        self.readers = [reader for reader in self.readers if reader[0] not in leaving]
        if count != len(self.ranks):
            for rank in self.ranks:
                rank.earlier.append(rank.own)
                rank.own = SlotTable(SLOTS + 1, KEPT_SHARDED)
        self.ranks = self.ranks[:count] + [Rank() for _ in range(count - len(self.ranks))]
        self.restore(least)

    @rule(which=st.integers(0, 4))
    def a_worker_dies(self, which: int) -> None:
        staged = min(rank.staged for rank in self.ranks)
        least = (self.round, staged) if all(rank.stages for rank in self.ranks) else self.start
        self.end_round()
        self.restore(least)

    @rule(first=st.integers(0, 4), others=st.sets(st.integers(1, 4)))
    def nodes_are_lost(self, first: int, others: set[int]) -> None:
        """At once; as many as there are copies."""
        copied = min(rank.copied for rank in self.ranks)
        if copied < 0:
            return  # Another loss, before what the round started from is copied.
        least = (self.round, copied) if copied > self.start[1] else self.start
        lost = {self.pick(first + more)[0] for more in (0, *sorted(others)[: self.copies - 1])}
        self.end_round()
        for number in lost:
            self.readers = [reader for reader in self.readers if reader[0] is not self.ranks[number]]
            self.ranks[number] = Rank()
        self.restore(least)

    @rule(copied=st.sets(st.integers(0, 4)), first=st.integers(0, 4), others=st.sets(st.integers(1, 4)))
    def nodes_are_lost_of_which_some_had_copied_more(self, copied: set[int], first: int, others: set[int]) -> None:
        """As far ahead as collectives let them be."""
        self.iterations_go_by({0, 1, 2, 3, 4}, 2)
        self.iterations_go_by(copied, 2)
        self.nodes_are_lost(first, others)

    def end_round(self) -> None:
        for number, rank in enumerate(self.ranks):
            if rank.writing is not None:
                rank.own.abandon(rank.writing)
            for keeper, (slot, place) in rank.copying.items():
                rank.own.unpin(slot)
                self.table_at(keeper, number).abandon(place)
            rank.copying.clear()
            if rank.restored is not None:
                rank.own.unpin(rank.restored)
            rank.writing = rank.restored = None

    def restore(self, least: tuple[int, int]) -> None:
        """What is restored is one (round, iteration) for all, and none that all had is lost."""
        holdings_held = [
            Holding(*identity, node=f"n{number}")
            for number, rank in enumerate(self.ranks)
            for table in rank.tables()
            for slot in table.complete()
            if (identity := table[slot].identity)
        ]
        choice = choose_restore(holdings_held + self.stored())
        self.round += 1
        if choice is None:
            assert least == (0, 0)
            self.start = (0, 0)
        else:
            assert (choice.round, choice.iteration) >= least
            assert {(s.round, s.iteration) for s in choice.sources} == {(choice.round, choice.iteration)}
            assert {s.shard for s in choice.sources} == set(range(choice.sources[0].shards))
            for source in choice.sources:
                identity = Identity(source.round, source.iteration, source.shard, source.shards)
                assert source.node or identity in self.objects
            self.start = choice.round, choice.iteration
        for rank in self.ranks:
            for table in rank.copies.values():
                for slot in table.complete():
                    if (identity := table[slot].identity) and self.start < identity[:2]:
                        table.drop(slot)
        for number, rank in enumerate(self.ranks):
            rank.staged, rank.copied, rank.stages = self.start[1], -1, 0
            if choice is not None and choice.sources[0].shards == len(self.ranks):
                self.bring(number, Identity(*self.start, number, len(self.ranks)))

    def bring(self, number: int, identity: Identity) -> None:
        rank = self.ranks[number]
        if rank.own.find(identity) is None:
            slot = rank.own.acquire(identity)
            while slot is None:
                self.is_persisted(0, is_well=True)
                slot = rank.own.acquire(identity)
            rank.own.stage(slot, 1)
        rank.restored = rank.own.find(identity)
        assert rank.restored is not None
        rank.own.pin(rank.restored)
        self.copy(number, rank.restored)


def test_whatever_nodes_are_lost_or_workers_die_a_state_of_all_ranks_is_whole_in_memory() -> None:
    run_state_machine_as_test(Ranks, settings=settings(max_examples=examples(40), stateful_step_count=60))
