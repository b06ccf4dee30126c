"""Which slot of a segment may be written, and which states are held whole. Pure: no IO, no clock, no lock.

A slot's life is one table of (state, event); an unlisted pair raises. Three slots are enough that a worker never waits
while one state is being persisted: the newest whole one, the one being read, the one being written.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

SLOTS = 3
"""Of each segment: one is written, one is read, one is whole."""
KEPT_SHARDED = 2
"""Newest whole states of a sharded one that are never overwritten: a peer's copies may be one behind (see `copies`)."""


class Identity(NamedTuple):
    """A staged shard: after a rollback the same iteration comes again, in a later round."""

    round: int
    iteration: int
    shard: int = 0
    shards: int = 1
    """As many as the round has ranks; 1: the state is the same on every rank."""


class SlotState(StrEnum):
    """What a slot's bytes are worth."""

    ABSENT = "absent"
    """It has no memory yet."""
    FREE = "free"
    WRITING = "writing"
    """Torn until it is whole: never offered to anybody."""
    WHOLE = "whole"
    SPOILT = "spoilt"
    """Its bytes proved wrong while somebody read them: offered to nobody, and free when the last reader ends."""


class SlotEvent(StrEnum):
    """What happens to a slot."""

    ALLOCATE = "allocate"
    ACQUIRE = "acquire"
    STAGE = "stage"
    ABANDON = "abandon"
    """The writer died or gave up."""
    SPOIL = "spoil"
    """The content proved wrong."""
    DROP = "drop"
    """The content is not to be used: it is wrong, rolled back, or held twice."""


TRANSITIONS: dict[tuple[SlotState, SlotEvent], SlotState] = {
    (SlotState.ABSENT, SlotEvent.ALLOCATE): SlotState.FREE,
    (SlotState.FREE, SlotEvent.ACQUIRE): SlotState.WRITING,
    (SlotState.WHOLE, SlotEvent.ACQUIRE): SlotState.WRITING,
    (SlotState.WRITING, SlotEvent.STAGE): SlotState.WHOLE,
    (SlotState.WRITING, SlotEvent.ABANDON): SlotState.FREE,
    (SlotState.WHOLE, SlotEvent.SPOIL): SlotState.SPOILT,
    (SlotState.WHOLE, SlotEvent.DROP): SlotState.FREE,
    (SlotState.SPOILT, SlotEvent.DROP): SlotState.FREE,
}


class SlotError(RuntimeError):
    """An event that the table does not list, or a pinned slot about to change."""


@dataclass(frozen=True)
class SlotFacts:
    """One slot."""

    state: SlotState = SlotState.FREE
    identity: Identity | None = None
    size: int = 0
    digest: str = ""
    """xxh3_128 of its head, which has the digests of its data; empty until somebody computed it."""
    pins: int = 0
    """Readers at work. Invariant: a slot with readers is never written."""
    flaw: str = ""
    """What proved wrong."""


class SlotTable:
    """The slots of one segment."""

    def __init__(self, count: int, kept: int = 1, absent: int = 0) -> None:
        """`kept`: so many of the newest whole states are never overwritten. `absent`: the last ones have no memory."""
        if count <= kept:
            raise ValueError(f"{count} slots; at least {kept + 1} are needed so that {kept} can always be whole")
        self._slots = [SlotFacts()] * (count - absent) + [SlotFacts(SlotState.ABSENT)] * absent
        self._kept = kept

    def __getitem__(self, slot: int) -> SlotFacts:
        return self._slots[slot]

    def __len__(self) -> int:
        return len(self._slots)

    def whole(self) -> list[int]:
        """Slots that hold a whole state, the newest first."""
        found = [number for number, slot in enumerate(self._slots) if slot.state is SlotState.WHOLE]
        return sorted(found, key=lambda number: self._slots[number].identity or (), reverse=True)

    def newest(self) -> int | None:
        """The slot of the newest whole state."""
        return next(iter(self.whole()), None)

    def find(self, identity: Identity) -> int | None:
        """The slot that holds that state whole."""
        return next((number for number in self.whole() if self._slots[number].identity == identity), None)

    def writing(self) -> list[int]:
        """Slots with a writer."""
        return [number for number, slot in enumerate(self._slots) if slot.state is SlotState.WRITING]

    def absent(self) -> list[int]:
        """Slots without memory."""
        return [number for number, slot in enumerate(self._slots) if slot.state is SlotState.ABSENT]

    def allocated(self, slot: int) -> None:
        """It has its memory now."""
        self._slots[slot] = SlotFacts(self._next(slot, SlotEvent.ALLOCATE))

    def writable(self) -> int | None:
        """The slot to write next: a free one, else the oldest whole one that is neither among the newest that are kept
        nor pinned; None when there is none now."""
        free = [number for number, slot in enumerate(self._slots) if slot.state is SlotState.FREE]
        old = [number for number in reversed(self.whole()[self._kept :]) if not self._slots[number].pins]
        return next(iter(free + old), None)

    def acquire(self, identity: Identity) -> int | None:
        """Begin to write `identity` into the slot that is `writable`; None when there is none now."""
        chosen = self.writable()
        if chosen is not None:
            self._slots[chosen] = SlotFacts(self._next(chosen, SlotEvent.ACQUIRE), identity)
        return chosen

    def stage(self, slot: int, size: int) -> None:
        """The writer is done: `size` bytes are whole. A state held already keeps its first slot."""
        state, identity = self._next(slot, SlotEvent.STAGE), self._slots[slot].identity
        known = identity is not None and self.find(identity) is not None
        self._slots[slot] = replace(self._slots[slot], state=state, size=size)
        if known:
            self.drop(slot)

    def abandon(self, slot: int) -> None:
        """The writer is dead or gave up: what it wrote is forgotten."""
        self._slots[slot] = SlotFacts(self._next(slot, SlotEvent.ABANDON))

    def spoil(self, slot: int, why: str) -> None:
        """The content proved wrong: who reads it may end, nobody else begins to."""
        state = self._transition(slot, SlotEvent.SPOIL)
        self._slots[slot] = replace(self._slots[slot], state=state, flaw=why)
        if not self._slots[slot].pins:
            self.drop(slot)

    def drop(self, slot: int) -> None:
        """The content is not to be used."""
        self._slots[slot] = SlotFacts(self._next(slot, SlotEvent.DROP))

    def digested(self, slot: int, digest: str) -> None:
        """The digest of a whole slot is known."""
        if self._slots[slot].state is not SlotState.WHOLE:
            raise SlotError(f"slot {slot} is {self._slots[slot].state}: it has no digest")
        self._slots[slot] = replace(self._slots[slot], digest=digest)

    def pin(self, slot: int) -> None:
        """A reader begins."""
        if self._slots[slot].state is not SlotState.WHOLE:
            raise SlotError(f"slot {slot} is {self._slots[slot].state}: nobody may read it")
        self._slots[slot] = replace(self._slots[slot], pins=self._slots[slot].pins + 1)

    def unpin(self, slot: int) -> None:
        """A reader ends."""
        if not self._slots[slot].pins:
            raise SlotError(f"slot {slot} has no reader")
        self._slots[slot] = replace(self._slots[slot], pins=self._slots[slot].pins - 1)
        if self._slots[slot].state is SlotState.SPOILT and not self._slots[slot].pins:
            self.drop(slot)

    def _next(self, slot: int, event: SlotEvent) -> SlotState:
        if self._slots[slot].pins:
            raise SlotError(f"slot {slot} is being read: no {event} now")
        return self._transition(slot, event)

    def _transition(self, slot: int, event: SlotEvent) -> SlotState:
        state = self._slots[slot].state
        try:
            return TRANSITIONS[state, event]
        except KeyError:
            raise SlotError(f"slot {slot} is {state}: no {event} now") from None
