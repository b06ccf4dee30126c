"""Which states go to the store, one at a time, and with what result.

The interval's wishes do not queue: while one state is on its way to the store, the newest replaces an older one that
waits. That is counted and logged. A state that somebody waits for (flush, persist=True) is put in any case, and pinned
until then. If the store fails while a flush or the end of the training waits, the put is tried again for
`store_patience_s`: a store that is away for a moment must not cost the last state.

What a dead worker staged goes to the store after the restore of the next round, not beside it (see `options`).

Invariant: a state that is put is complete, and its slot is not written meanwhile: 0 <= persisted <= staged.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from everstep.runtime.checkpoint.errors import KeeperError
from everstep.runtime.checkpoint.node.core.actions import PutObject, ReportPersisted, Warn
from everstep.runtime.checkpoint.node.core.events import CheckpointCommitted, Drain, Flush, PersistNewest, PutEnded
from everstep.runtime.checkpoint.node.core.options import RESTORE_S, KeeperOptions
from everstep.runtime.checkpoint.node.core.persist_interval import PersistInterval
from everstep.runtime.checkpoint.node.core.segments import Pin, Reader, Segment, Segments
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.checkpoint.node.core.transaction import Transaction
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.rounds import Seat

MAX_RESULTS = 64
"""Results that are remembered; more than anybody waits for at once."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""Before a failed put is tried again; each pause is twice the one before."""


@dataclass(frozen=True)
class PersistResult:
    """The manifest's key, or why the store did not take the state."""

    manifest: str = ""
    error: str = ""


@dataclass(frozen=True)
class Outage:
    """The store did not take a state that somebody waits for."""

    since: float
    retry_at: float
    pause_s: float


class PersistQueue:
    """The states of one node on their way to the store."""

    def __init__(
        self, tx: Transaction, segments: Segments, options: KeeperOptions, key_of: Callable[[Identity, str], str]
    ) -> None:
        """`key_of` names a shard's object; see `_key`."""
        self._tx, self._segments, self._key_of = tx, segments, key_of
        self._persists = options.persists
        self.interval = PersistInterval(options.persist_interval, options.overhead)
        self._required: deque[Pin] = deque()
        self._wishes: dict[int, Identity] = {}
        """By local rank."""
        self._turn: Pin | None = None
        """The state that is put now, or will be once its digest is known."""
        self._put: PutObject | None = None
        """The work that puts it."""
        self._persists_since: int | None = None
        """The round since which this node persists replicated states; None: another node does."""
        self._patience_s = options.store_patience_s
        self._outage: Outage | None = None
        """While the store fails for the state whose turn it is."""
        self._death_s = options.death_s
        self._held_until = 0.0
        """No put begins before that time."""
        self._under_way: set[Identity] = set()
        """Required, being put, or put and not committed yet."""
        self._results: dict[Identity, PersistResult] = {}
        self._flushes: list[tuple[int, Identity]] = []
        """Tickets, and the state that each waits for."""
        self._drains: list[int] = []
        """Tickets that wait until nothing is demanded."""
        self.skipped = 0
        """Wishes of the interval that a newer state replaced."""

    def begin(self, seat: Seat) -> None:
        """A round begins: flushes end, and results of rounds before the last one are forgotten."""
        self._refuse_flushes()
        if not seat.persists:
            self._persists_since = None
        elif self._persists_since is None:
            self._persists_since = seat.round
        waiting = {pin.identity for pin in self._required}
        self._results = {
            identity_of_result: how
            for identity_of_result, how in self._results.items()
            if identity_of_result.round >= seat.round - 1
        }
        self._under_way = {
            work_identity
            for work_identity in self._under_way
            if work_identity.round >= seat.round - 1 or work_identity in waiting
        }
        self.interval.begin_round(seat.restart_count, self._tx.now)
        if self._is_held():
            self._held_until = self._tx.now + RESTORE_S if seat.restore else 0.0

    def close(self) -> None:
        """The put that is running is the last one."""
        self._held_until = 0.0
        self._refuse_flushes()
        self._wishes.clear()
        if self._turn is not None and self._put is None:
            self._segments.unpin(self._turn)
            self._turn, self._outage = None, None
        while self._required:
            self._segments.unpin(self._required.popleft())
        self._answer_drains()

    # Demands

    def note_stage(self, segment: Segment, identity: Identity, forced: bool) -> None:
        """A worker has staged that state: put it if `forced`, or if the interval says so. Raises KeeperError."""
        self._held_until = 0.0  # The round has restored its state: an iteration is done.
        self.interval.note_stage(identity.iteration, self._tx.now)
        due = self.interval.is_due(identity.iteration)
        if not self._stores(segment):
            return
        if forced or (due and segment.sharded):  # All ranks put the same iterations, however slow the store is.
            self._require(segment.local_rank, identity)
        elif due:
            self._wish(segment.local_rank, identity)

    def note_death(self, local_rank: int) -> None:
        """A worker has died: its newest state goes to the store unasked, after the restore that may follow."""
        segment = self._segments.current(local_rank)
        if segment and self._stores(segment):
            self._held_until = self._tx.now + self._death_s
            self._put_newest(segment)

    def flush(self, event: Flush) -> None:
        """Put an iteration, or the newest if it was overwritten, and answer when it is committed. Raises
        KeeperError."""
        segment = self._segments.current(event.local_rank)
        if segment is None or not self._stores(segment):
            self._tx.answer(event.ticket, "")
            return
        self._held_until = 0.0
        identity = self._segments.identify(segment, event.iteration)
        if not self._has_or_gets_result(identity):
            if not segment.sharded:  # All ranks of a sharded state must put the same iteration.
                identity = self._segments.same_or_newer(identity, event.local_rank)
            self._require(event.local_rank, identity)
        self._flushes.append((event.ticket, identity))

    def persist_newest(self, event: PersistNewest) -> None:
        """Put the newest state of each rank, even if another node persists this round's."""
        self._held_until = 0.0
        for local_rank in {segment.local_rank for segment in self._segments.of_workers()}:
            segment = self._segments.current(local_rank)
            if segment and self._persists:
                self._put_newest(segment)
        self._tx.answer(event.ticket)

    def drain(self, event: Drain) -> None:
        """Answer once nothing is put, and nothing waits for it."""
        self._held_until = 0.0
        self._drains.append(event.ticket)

    def _put_newest(self, segment: Segment) -> None:
        """Of a sharded state put the newest two: a rank that was killed may have staged one iteration less."""
        assert self._segments.seat is not None
        newest = self._segments.newest(segment.local_rank, self._segments.seat.round)
        for identity in reversed(newest[: 1 + segment.sharded]):
            if not segment.sharded:
                self._wish(segment.local_rank, identity)
            elif not self._has_or_gets_result(identity):
                self._require(segment.local_rank, identity)

    def _stores(self, segment: Segment) -> bool:
        """Whether this node puts that segment's states into the store in this round."""
        seat = self._segments.seat
        return self._persists and (segment.sharded or (seat is not None and seat.persists))

    def _require(self, local_rank: int, identity: Identity) -> None:
        """Put that state in any case. Raises KeeperError if it is not in memory."""
        if identity in self._under_way:
            return
        slot = self._segments.find(identity, local_rank)
        if slot is None:
            raise KeeperError(f"iteration {identity.iteration} is not staged: save it before it is flushed")
        self._required.append(self._segments.pin(*slot, Reader.PERSIST))
        self._under_way.add(identity)
        self._results.pop(identity, None)

    def _wish(self, local_rank: int, identity: Identity) -> None:
        """Put that state, or a newer one if it must wait."""
        waiting = self._wishes.get(local_rank)
        if identity == waiting or identity in self._under_way or self.result(identity):
            return
        if waiting is not None:
            self.skipped += 1
            self._tx.act(
                Warn(
                    f"iteration {waiting.iteration} is not persisted: {identity.iteration} came before the store had "
                    f"taken an earlier one ({self.skipped} so far)"
                )
            )
        self._wishes[local_rank] = identity

    # Results

    def result(self, identity: Identity) -> PersistResult | None:
        """The result of that state; the commit of a later one of the same round is as good."""
        later = [
            identity_of_result
            for identity_of_result, result in self._results.items()
            if result.manifest and identity_of_result.round == identity.round and identity_of_result[:2] >= identity[:2]
        ]
        return self._results[min(later)] if later else self._results.get(identity)

    def _has_or_gets_result(self, identity: Identity) -> bool:
        """Whether it need not be required (again)."""
        result = self.result(identity)
        return identity in self._under_way or (result is not None and not result.error)

    def note_commit(self, event: CheckpointCommitted) -> None:
        """The manifest is visible. It stands for earlier states of its round, whose results are forgotten."""
        identity = event.identity
        self._under_way.discard(identity)
        for earlier_identity in [
            earlier_identity
            for earlier_identity in self._results
            if earlier_identity.round == identity.round and earlier_identity < identity
        ]:
            del self._results[earlier_identity]
        self._note_result(identity, PersistResult(event.manifest))

    def _note_result(self, identity: Identity, result: PersistResult) -> None:
        self._results.pop(identity, None)
        self._results[identity] = result
        for identity_of_result in list(self._results)[:-MAX_RESULTS]:
            del self._results[identity_of_result]

    def _refuse_flushes(self) -> None:
        for ticket, identity in self._flushes:
            why = f"the round ended before iteration {identity.iteration} was committed"
            self._tx.refuse(ticket, KeeperError(why))
        self._flushes.clear()

    def _answer_flushes(self) -> bool:
        flushes, self._flushes = self._flushes, []
        for ticket, identity in flushes:
            result = self.result(identity)
            if result is None:
                self._flushes.append((ticket, identity))
            elif result.error:
                self._tx.refuse(ticket, KeeperError(result.error))
            else:
                self._tx.answer(ticket, result.manifest)
        return len(self._flushes) < len(flushes)

    def _answer_drains(self) -> bool:
        drains, self._drains = self._drains, []
        for ticket in drains:
            self._tx.answer(ticket)
        return bool(drains)

    # Puts

    def advance(self) -> bool:
        """Start the next put if it can be, and answer flushes. Returns whether anything changed."""
        has_changed = self._advance_turn() | self._answer_flushes()
        return has_changed or (self._turn is None and self._answer_drains())

    def _advance_turn(self) -> bool:
        if self._put is not None or self._is_held():
            return False
        if self._turn is None:
            self._turn = self._next()
            if self._turn is None:
                return False
            self.interval.note_persist_start(self._tx.now)
        if self._turn.flaw:
            self._end_turn(self._turn, self._turn.flaw)
            return True
        if not self._turn.digest or (self._outage is not None and self._tx.now < self._outage.retry_at):
            return False
        self._put = PutObject(
            self._tx.number_work(), self._turn.location, self._key(self._turn), self._turn.identity.iteration
        )
        self._tx.act(self._put)
        return True

    def _key(self, pin: Pin) -> str:
        """The key of that state's object. The name has the digest if another node may put its own copy of the state: so
        no two nodes write different bytes under one name. The manifest names what was reported first."""
        identity, since = pin.identity, self._persists_since
        is_alone = identity.shards > 1 or (since is not None and since <= identity.round)
        return self._key_of(identity, "" if is_alone else pin.digest)

    def _next(self) -> Pin | None:
        """The state to put now; None if no demanded one is still in memory."""
        if self._required:
            return self._required.popleft()
        while self._wishes:
            local_rank, identity = self._wishes.popitem()
            slot = self._segments.find(identity, local_rank)
            if slot is None:
                newest = self._segments.newest(local_rank, identity.round)  # Another node may persist the later round.
                identity = newest[0] if newest else identity
                slot = self._segments.find(identity, local_rank)
            if slot is not None and not self._has_or_gets_result(identity):
                self._under_way.add(identity)
                return self._segments.pin(*slot, Reader.PERSIST)
        return None

    def end_put(self, event: PutEnded) -> None:
        """The store has it or refused it."""
        pin, put = self._turn, self._put
        assert pin is not None
        assert put is not None
        assert event.work == put.work
        self._put = None
        if event.error and self._is_awaited(pin.identity) and self._wait_for_store(pin.identity, event.error):
            return
        if not event.error:
            place = {"size": pin.location.size, "key": put.key, "digest": pin.digest}
            self._tx.act(ReportPersisted(Holding(*pin.identity, **place)))
        self._end_turn(pin, event.error)

    def _is_awaited(self, identity: Identity) -> bool:
        """Does a flush wait for this state, or the end of a training for all?"""
        return bool(self._drains) or any(flushed == identity for _, flushed in self._flushes)

    def _wait_for_store(self, identity: Identity, error: str) -> bool:
        """Keep the turn for another try; False if the store has failed for too long."""
        now, last = self._tx.now, self._outage
        since, pause = (last.since, min(2 * last.pause_s, LONGEST_PAUSE_S)) if last else (now, FIRST_PAUSE_S)
        if now + pause > since + self._patience_s:
            return False
        if last is None:
            what = f"iteration {identity.iteration} is not persisted yet, retrying for {self._patience_s:g} s: {error}"
            self._tx.act(Warn(what))
        self._outage = Outage(since, now + pause, pause)
        return True

    def next_deadline(self) -> float | None:
        """When the next put begins that waits, or one that failed is tried again."""
        if self._put is not None:
            return None
        if self._is_held():
            return self._held_until if self._turn or self._required or self._wishes else None
        return self._outage.retry_at if self._outage is not None else None

    def _is_held(self) -> bool:
        """Does a round restore its state, or is one expected to?"""
        return self._tx.now < self._held_until

    def _end_turn(self, pin: Pin, error: str) -> None:
        self._turn, self._outage, identity = None, None, pin.identity
        self.interval.note_persist_end(self._tx.now)
        if error:
            self._tx.act(Warn(f"iteration {identity.iteration} is not persisted: {error}"))
            self._under_way.discard(identity)
            self._note_result(
                identity, PersistResult(error=f"iteration {identity.iteration} cannot be persisted: {error}")
            )
        self._segments.unpin(pin)
