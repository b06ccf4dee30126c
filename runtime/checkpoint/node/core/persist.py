"""Which staged states go to the store, one at a time, and how that ended. Pure: no IO, no clock, no lock.

The interval's wishes do not queue: while one state is being put, the newest takes the place of an older one that waits,
which is counted and told. What somebody waits for (flush, persist=True) is put in any case, and pinned until then.

Invariant: what is put is held whole, and not written while it is read: 0 <= persisted <= staged.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from everstep.runtime.checkpoint.errors import KeeperError
from everstep.runtime.checkpoint.node.core.events import Put, PutObject, TellPersisted, Warn
from everstep.runtime.checkpoint.node.core.persist_interval import Cadence
from everstep.runtime.checkpoint.node.core.segments import Pin, Reader, Segments
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.protocol.messages import Holding

KEPT_OUTCOMES = 64
"""More than anybody waits for at once."""


@dataclass(frozen=True)
class Outcome:
    """How it ended: the manifest's key, or why the store did not take it."""

    manifest: str = ""
    error: str = ""


class Persists:
    """Of one node."""

    def __init__(self, segments: Segments, cadence: Cadence, key_of: Callable[[Identity], str]) -> None:
        """`cadence` is told how long each copy takes; `key_of` names a shard's object."""
        self._segments, self._cadence, self._key_of = segments, cadence, key_of
        self._asked: deque[Pin] = deque()
        self._wanted: dict[int, Identity] = {}
        """By local rank."""
        self._turn: Pin | None = None
        """What is put now, or will be as soon as its digest is known."""
        self._put: int | None = None
        """The work that puts it."""
        self._under_way: set[Identity] = set()
        """Asked, being put, or put and not committed yet."""
        self._outcomes: dict[Identity, Outcome] = {}
        self.skipped = 0
        """Wishes of the interval that a newer state took the place of."""

    def begin(self, round_: int) -> None:
        """A round begins: nobody asks any more how states of rounds before the last one fared."""
        waiting = {pin.identity for pin in self._asked}
        self._outcomes = {known: how for known, how in self._outcomes.items() if known.round >= round_ - 1}
        self._under_way = {known for known in self._under_way if known.round >= round_ - 1 or known in waiting}

    def close(self) -> None:
        """The put that is going on is the last one."""
        self._wanted.clear()
        if self._turn is not None and self._put is None:
            self._asked.append(self._turn)
            self._turn = None
        while self._asked:
            self._segments.unpin(self._asked.popleft())

    def ask(self, local_rank: int, identity: Identity) -> None:
        """Put that state in any case. Raises KeeperError when it is not held."""
        if identity in self._under_way:
            return
        found = self._segments.find(identity, local_rank)
        if found is None:
            raise KeeperError(f"iteration {identity.iteration} is not staged: save it before it is flushed")
        self._asked.append(self._segments.pin(*found, Reader.PERSIST))
        self._under_way.add(identity)
        self._outcomes.pop(identity, None)

    def want(self, local_rank: int, identity: Identity) -> None:
        """Put that state, or a newer one if it must wait."""
        waiting = self._wanted.get(local_rank)
        if identity == waiting or identity in self._under_way or self.outcome(identity):
            return
        if waiting is not None:
            self.skipped += 1
            self._segments.act(
                Warn(
                    f"iteration {waiting.iteration} is not persisted: {identity.iteration} came before the store had "
                    f"taken an earlier one ({self.skipped} so far)"
                )
            )
        self._wanted[local_rank] = identity

    def under_way(self, identity: Identity) -> bool:
        """Will it have an outcome without being asked for (again)?"""
        outcome = self.outcome(identity)
        return identity in self._under_way or (outcome is not None and not outcome.error)

    def outcome(self, identity: Identity) -> Outcome | None:
        """Of that state; the commit of a later one of the same round is as good."""
        later = [known for known, outcome in self._outcomes.items() if outcome.manifest and known[:2] >= identity[:2]]
        same = [known for known in later if known.round == identity.round]
        return self._outcomes[min(same)] if same else self._outcomes.get(identity)

    def committed(self, identity: Identity, manifest: str) -> None:
        """Its manifest is visible: that is as good for earlier states of its round, which nobody asks for by then."""
        self._under_way.discard(identity)
        past = [known for known in self._outcomes if known.round == identity.round and known < identity]
        for known in past:
            del self._outcomes[known]
        self._note(identity, Outcome(manifest))

    def _note(self, identity: Identity, outcome: Outcome) -> None:
        self._outcomes.pop(identity, None)
        self._outcomes[identity] = outcome
        for known in list(self._outcomes)[:-KEPT_OUTCOMES]:
            del self._outcomes[known]

    def advance(self, now: float) -> bool:
        """Go on as far as it can; did it?"""
        if self._turn is None:
            self._turn = self._next()
            if self._turn is None:
                return False
            self._cadence.persisting(now)
        elif self._put is not None:
            return False
        if self._turn.flaw:
            self._end(self._turn, self._turn.flaw, now)
            return True
        if not self._turn.digest:
            return False
        self._put = next(self._segments.works)
        identity = self._turn.identity
        self._segments.act(PutObject(self._put, self._turn.where, self._key_of(identity), identity.iteration))
        return True

    def ended(self, event: Put, now: float) -> None:
        """The store has it or refused it."""
        pin = self._turn
        assert pin is not None
        assert event.work == self._put
        self._put = None
        if not event.error:
            place = {"size": pin.where.size, "key": self._key_of(pin.identity), "digest": pin.digest}
            self._segments.act(TellPersisted(Holding(*pin.identity, **place)))
        self._end(pin, event.error, now)

    def _end(self, pin: Pin, error: str, now: float) -> None:
        self._turn, identity = None, pin.identity
        self._cadence.persisted(now)
        if error:
            self._segments.act(Warn(f"iteration {identity.iteration} is not persisted: {error}"))
            self._under_way.discard(identity)
            self._note(identity, Outcome(error=f"iteration {identity.iteration} cannot be persisted: {error}"))
        self._segments.unpin(pin)

    def _next(self) -> Pin | None:
        """What to put now; None when nothing is wanted that is still held."""
        if self._asked:
            return self._asked.popleft()
        while self._wanted:
            local_rank, identity = self._wanted.popitem()
            found = self._segments.find(identity, local_rank)
            if found is None:
                newest = self._segments.newest(local_rank, identity.round)  # Another node may persist the later round.
                if not newest:
                    continue
                identity = newest[0]
                found = self._segments.find(identity, local_rank)
            if found is None or self.under_way(identity):
                continue
            self._under_way.add(identity)
            return self._segments.pin(*found, Reader.PERSIST)
        return None
