"""Which slot of a segment may be written, and which states are complete.

The life of a slot is one table of (state, event); an unlisted pair raises. Three slots are enough for a worker not to
wait while a state is being persisted: the newest complete one, the one being read, and the one being written.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

SLOTS = 3
"""Slots of a worker's segment: one is written, one is read, one is complete."""
KEPT_SHARDED = 2
"""Newest states of a sharded segment that are never overwritten: peers' copies may be one behind (see
`peer_copies`)."""


def copy_slots(copies: int) -> int:
    """Slots for copies of one shard that so many nodes keep: the next one on its way, and the last complete one; of
    several copies the last two, as another node's copies may be one behind (see `peer_copies`)."""
    return 1 + min(copies, KEPT_SHARDED)


class Identity(NamedTuple):
    """A staged shard. After a rollback the same iteration comes again, in a later round."""

    round: int
    iteration: int
    shard: int = 0
    shards: int = 1
    """The number of ranks of its round; 1: the state is the same on every rank."""


class SlotState(StrEnum):
    """What a slot's bytes are worth."""

    ABSENT = "absent"
    """It has no memory yet."""
    FREE = "free"
    WRITING = "writing"
    """Torn until the stage is committed: never offered."""
    COMPLETE = "complete"
    INVALID = "invalid"
    """Not to be used, but somebody still reads it: never offered, and free when its last reader ends."""


class SlotEvent(StrEnum):
    """What happens to a slot."""

    ALLOCATE = "allocate"
    ACQUIRE = "acquire"
    STAGE = "stage"
    ABANDON = "abandon"
    """The writer died or gave up."""
    INVALIDATE = "invalidate"
    """The content proved wrong, or is rolled back."""
    DROP = "drop"
    """The content is not needed."""


TRANSITIONS: dict[tuple[SlotState, SlotEvent], SlotState] = {
    (SlotState.ABSENT, SlotEvent.ALLOCATE): SlotState.FREE,
    (SlotState.FREE, SlotEvent.ACQUIRE): SlotState.WRITING,
    (SlotState.COMPLETE, SlotEvent.ACQUIRE): SlotState.WRITING,
    (SlotState.WRITING, SlotEvent.STAGE): SlotState.COMPLETE,
    (SlotState.WRITING, SlotEvent.ABANDON): SlotState.FREE,
    (SlotState.COMPLETE, SlotEvent.INVALIDATE): SlotState.INVALID,
    (SlotState.COMPLETE, SlotEvent.DROP): SlotState.FREE,
    (SlotState.INVALID, SlotEvent.DROP): SlotState.FREE,
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
    """xxh3_128 of its head, which has the digests of its data; empty until it was computed."""
    pins: int = 0
    """Its readers. Invariant: a slot with readers is never written."""
    flaw: str = ""
    """Why the content is not to be used."""


class SlotTable:
    """The slots of one segment."""

    def __init__(self, count: int, kept_count: int = 1, absent: int = 0) -> None:
        """`kept_count`: how many of the newest states are never overwritten. `absent`: how many slots, the last ones,
        have no memory yet. Raises ValueError for too few slots."""
        if count <= kept_count:
            raise ValueError(
                f"{count} slots; at least {kept_count + 1} are needed so that {kept_count} can always be complete"
            )
        self._slots = [SlotFacts()] * (count - absent) + [SlotFacts(SlotState.ABSENT)] * absent
        self._kept = kept_count

    def __getitem__(self, slot: int) -> SlotFacts:
        return self._slots[slot]

    def __len__(self) -> int:
        return len(self._slots)

    def complete(self) -> list[int]:
        """Slots that hold a complete state, the newest first."""
        slots = [number for number, slot in enumerate(self._slots) if slot.state is SlotState.COMPLETE]
        return sorted(slots, key=lambda number: self._slots[number].identity or (), reverse=True)

    def newest(self) -> int | None:
        """The slot of the newest complete state."""
        return next(iter(self.complete()), None)

    def find(self, identity: Identity) -> int | None:
        """The slot that holds that state, complete."""
        return next((number for number in self.complete() if self._slots[number].identity == identity), None)

    def writing(self) -> list[int]:
        """Slots with a writer."""
        return [number for number, slot in enumerate(self._slots) if slot.state is SlotState.WRITING]

    def absent(self) -> list[int]:
        """Slots without memory."""
        return [number for number, slot in enumerate(self._slots) if slot.state is SlotState.ABSENT]

    def allocate(self, slot: int) -> None:
        """The slot has its memory now."""
        self._slots[slot] = SlotFacts(self._next(slot, SlotEvent.ALLOCATE))

    def writable(self) -> int | None:
        """The slot to write next: a free one, otherwise the oldest complete one that is neither kept nor pinned; None
        if there is none now."""
        free = [number for number, slot in enumerate(self._slots) if slot.state is SlotState.FREE]
        old = [number for number in reversed(self.complete()[self._kept :]) if not self._slots[number].pins]
        return next(iter(free + old), None)

    def acquire(self, identity: Identity) -> int | None:
        """Begin to write `identity` into the writable slot; None if there is none now."""
        slot = self.writable()
        if slot is not None:
            self._slots[slot] = SlotFacts(self._next(slot, SlotEvent.ACQUIRE), identity)
        return slot

    def stage(self, slot: int, size: int) -> None:
        """The writer has finished: `size` bytes are complete. A state that is here already keeps its first slot."""
        state, identity = self._next(slot, SlotEvent.STAGE), self._slots[slot].identity
        is_staged = identity is not None and self.find(identity) is not None
        self._slots[slot] = replace(self._slots[slot], state=state, size=size)
        if is_staged:
            self.drop(slot)

    def abandon(self, slot: int) -> None:
        """The writer died or gave up: forget what it wrote."""
        self._slots[slot] = SlotFacts(self._next(slot, SlotEvent.ABANDON))

    def invalidate(self, slot: int, why: str) -> None:
        """The content is not to be used: present readers may finish, and no new one begins."""
        state = self._transition(slot, SlotEvent.INVALIDATE)
        self._slots[slot] = replace(self._slots[slot], state=state, flaw=why)
        if not self._slots[slot].pins:
            self.drop(slot)

    def drop(self, slot: int) -> None:
        """Forget the content."""
        self._slots[slot] = SlotFacts(self._next(slot, SlotEvent.DROP))

    def set_digest(self, slot: int, digest: str) -> None:
        """The digest of a complete slot is known."""
        if self._slots[slot].state is not SlotState.COMPLETE:
            raise SlotError(f"slot {slot} is {self._slots[slot].state}: it has no digest")
        self._slots[slot] = replace(self._slots[slot], digest=digest)

    def pin(self, slot: int) -> None:
        """A reader begins."""
        if self._slots[slot].state is not SlotState.COMPLETE:
            raise SlotError(f"slot {slot} is {self._slots[slot].state}: it cannot be read")
        self._slots[slot] = replace(self._slots[slot], pins=self._slots[slot].pins + 1)

    def unpin(self, slot: int) -> None:
        """A reader ends."""
        if not self._slots[slot].pins:
            raise SlotError(f"slot {slot} has no reader")
        self._slots[slot] = replace(self._slots[slot], pins=self._slots[slot].pins - 1)
        if self._slots[slot].state is SlotState.INVALID and not self._slots[slot].pins:
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
