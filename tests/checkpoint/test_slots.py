"""The rules of slots: the table, and two promises over every order of events."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from everstep.runtime.checkpoint.node.core.slots import (
    TRANSITIONS,
    Identity,
    SlotError,
    SlotEvent,
    SlotState,
    SlotTable,
)
from tests.examples import examples


def table_in(state: SlotState) -> SlotTable:
    if state is SlotState.ABSENT:
        return SlotTable(2, absent=2)
    table = SlotTable(2)
    if state is not SlotState.FREE:
        assert table.acquire(Identity(1, 1)) == 0
    if state in (SlotState.COMPLETE, SlotState.INVALID):
        table.stage(0, 10)
    if state is SlotState.INVALID:
        table.pin(0)
        table.invalidate(0, "other bytes")
    return table


@pytest.mark.parametrize("state", SlotState)
@pytest.mark.parametrize("event", [event for event in SlotEvent if event is not SlotEvent.ACQUIRE])
def test_an_event_that_the_table_does_not_list_raises(state: SlotState, event: SlotEvent) -> None:
    table = table_in(state)
    apply = {
        SlotEvent.ALLOCATE: lambda: table.allocate(0),
        SlotEvent.STAGE: lambda: table.stage(0, 10),
        SlotEvent.ABANDON: lambda: table.abandon(0),
        SlotEvent.INVALIDATE: lambda: table.invalidate(0, "other bytes"),
        SlotEvent.DROP: lambda: table.unpin(0) if state is SlotState.INVALID else table.drop(0),
    }[event]
    if (state, event) in TRANSITIONS:
        apply()
        reached = TRANSITIONS[state, event]
        assert table[0].state is (SlotState.FREE if reached is SlotState.INVALID else reached), "nobody reads it"
    else:
        with pytest.raises(SlotError, match=f"no {event} now"):
            apply()


def test_one_slot_is_too_few_to_keep_a_state_whole() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        SlotTable(1)


def test_a_slot_without_memory_is_not_handed_out_until_it_has_some() -> None:
    table = SlotTable(3, absent=2)
    assert (table.acquire(Identity(1, 1)), table.acquire(Identity(1, 2))) == (0, None)
    assert (table.absent(), table.complete()) == ([1, 2], [])
    table.allocate(1)
    assert (table.acquire(Identity(1, 2)), table.acquire(Identity(1, 3))) == (1, None)
    assert table.absent() == [2]


def test_a_pinned_slot_is_not_handed_out_until_it_is_let_go() -> None:
    table = SlotTable(2)
    for iteration in (1, 2):
        slot = table.acquire(Identity(1, iteration))
        assert slot is not None
        table.stage(slot, 1)
    table.pin(0)
    assert table.acquire(Identity(1, 3)) is None
    table.unpin(0)
    assert table.acquire(Identity(1, 3)) == 0


def test_what_proves_wrong_is_offered_to_nobody_and_written_when_its_last_reader_ends() -> None:
    table = table_in(SlotState.COMPLETE)
    for _ in range(2):
        table.pin(0)
    table.invalidate(0, "other bytes")
    assert (table.complete(), table.find(Identity(1, 1)), table[0].flaw) == ([], None, "other bytes")
    table.unpin(0)
    assert table[0].state is SlotState.INVALID
    with pytest.raises(SlotError):
        table.pin(0)
    table.unpin(0)
    assert table[0].state is SlotState.FREE


def test_after_a_rollback_the_later_round_is_the_newer_state() -> None:
    table = SlotTable(3)
    for identity in (Identity(1, 50), Identity(2, 41)):
        slot = table.acquire(identity)
        assert slot is not None
        table.stage(slot, 1)
    assert table[table.complete()[0]].identity == Identity(2, 41)


def test_a_state_staged_twice_is_held_once() -> None:
    table = SlotTable(3)
    for _ in range(2):
        slot = table.acquire(Identity(1, 1))
        assert slot is not None
        table.stage(slot, 1)
    assert table.complete() == [0]


def test_a_torn_slot_can_be_neither_read_nor_digested() -> None:
    table = table_in(SlotState.WRITING)
    with pytest.raises(SlotError):
        table.pin(0)
    with pytest.raises(SlotError):
        table.set_digest(0, "00")


class Slots(RuleBasedStateMachine):
    """A worker that stages and dies, readers that come and go. `content` is what the bytes really are: a slot's bytes
    are torn from the moment that somebody may write them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(3)
        self.content: dict[int, Identity | None] = dict.fromkeys(range(3))
        self.writer: tuple[int, Identity] | None = None
        self.readers: list[tuple[int, Identity]] = []
        self.staged: list[Identity] = []
        self.round, self.iteration = 1, 0

    @precondition(lambda self: self.writer is None)
    @rule()
    def worker_begins_a_stage(self) -> None:
        identity = Identity(self.round, self.iteration + 1)
        newest, free = self.table.newest(), len(self.table) - len(self.table.complete())
        slot = self.table.acquire(identity)
        if slot is None:
            assert not free
            assert {self.table[n].pins > 0 for n in self.table.complete()[1:]} == {True}
            return
        assert slot != newest
        assert slot not in [number for number, _ in self.readers]
        self.content[slot], self.writer = None, (slot, identity)

    @precondition(lambda self: self.writer is not None)
    @rule()
    def worker_commits(self) -> None:
        assert self.writer is not None
        slot, identity = self.writer
        self.content[slot] = identity
        self.table.stage(slot, 7)
        self.staged.append(identity)
        self.writer, self.iteration = None, identity.iteration

    @rule(rollback=st.integers(0, 3))
    def worker_dies_and_a_round_begins(self, rollback: int) -> None:
        if self.writer is not None:
            self.table.abandon(self.writer[0])
        self.writer = None
        self.round += 1
        self.iteration = max(0, self.iteration - rollback)

    @rule(which=st.integers(0, 2))
    def reader_begins(self, which: int) -> None:
        whole = self.table.complete()
        if whole:
            slot = whole[which % len(whole)]
            self.table.pin(slot)
            self.readers.append((slot, self.table[slot].identity or Identity(0, 0)))

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 5))
    def reader_ends(self, which: int) -> None:
        slot, identity = self.readers.pop(which % len(self.readers))
        assert self.content[slot] == identity
        self.table.unpin(slot)

    @invariant()
    def what_is_offered_is_whole(self) -> None:
        for slot in self.table.complete():
            assert self.table[slot].identity == self.content[slot]

    @invariant()
    def the_newest_staged_state_is_held(self) -> None:
        if self.staged:
            assert self.table.find(max(self.staged)) is not None

    @invariant()
    def what_is_being_read_stays(self) -> None:
        assert all(self.content[slot] == identity for slot, identity in self.readers)


def test_no_order_of_stages_deaths_and_readers_tears_or_loses_the_newest_state() -> None:
    run_state_machine_as_test(Slots, settings=settings(max_examples=examples(150), stateful_step_count=40))
