"""The agent's side of checkpoints: who may write which slot, what is held whole, what goes to the store, where a round
starts from.

Runs in the agent's process. Every method may be called from any thread; `announce`, `acquire`, `fetched`, `flush` and
`holdings` may block. One thread computes digests, one persists, one fetches at the beginning of each round. What cannot
be done raises KeeperError (or SegmentError: no shared memory), one line for the worker.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runtime.agent.link import Fetched, Segment, Slot, Staged
from runtime.checkpoint.errors import KeeperError, RestoreError, SegmentError
from runtime.checkpoint.fetch import described, digest_of, fetch
from runtime.checkpoint.held import Held, Segments, segment_prefix
from runtime.checkpoint.persist import Persister
from runtime.checkpoint.segment import Beacon
from runtime.checkpoint.slots import Identity
from runtime.job.messages import Holding, Restore, Seat
from runtime.store import Store

_log = logging.getLogger("everstep.checkpoint")
_SHM = Path("/dev/shm")


@dataclass(eq=False)
class _Beginning:
    """What a round starts from, while it is being fetched and after."""

    seat: Seat
    fetched: Fetched | None = None
    error: str = ""
    pinned: tuple[Held, int] | None = None


class Keeper:
    """Keeps the staged states of one node."""

    def __init__(
        self,
        *,
        job: str,
        node: str,
        store: Store,
        token: str,
        persist_interval: int,
        on_persisted: Callable[[Holding], None],
        directory: Path = _SHM,
        slots: int = 3,
    ) -> None:
        """`on_persisted` is called in a thread when a shard lies whole in the store: the agent tells the master."""
        if persist_interval < 1:
            raise ValueError(f"a persist interval of {persist_interval} iterations; at least 1 is needed")
        self._node, self._store, self._token = node, store, token
        self._interval = persist_interval
        self._segments = Segments(directory, segment_prefix(job, node), slots)
        self._segments.reclaim()
        self._changed = threading.Condition()
        self._beginning: _Beginning | None = None
        self._writing: dict[int, tuple[Held, int]] = {}
        self._lives: dict[int, int] = {}
        """Deaths of each local rank: a wait that began before one ends with it."""
        self._closed = False
        self._persister = Persister(self._changed, self._segments, store, job, on_persisted)
        threading.Thread(target=self._digest_newest, name="everstep-digest", daemon=True).start()

    @property
    def skipped(self) -> int:
        """Persists that the interval asked for and that a newer state took the place of."""
        return self._persister.skipped

    def new_round(self, seat: Seat) -> None:
        """A round begins, its workers are not started yet: fetch `seat.restore` into own memory, in a thread."""
        with self._changed:
            for local_rank in list(self._writing):
                self._abandon(local_rank)
            self._unpin_beginning()
            beginning = self._beginning = _Beginning(seat)
            self._changed.notify_all()
        threading.Thread(target=self._fetch, args=(beginning,), name="everstep-fetch", daemon=True).start()

    def announce(self, local_rank: int, capacity: int) -> Segment:
        """Make room for a worker's slots; the same capacity again finds the old segment with all that it holds."""
        with self._changed:
            self._check_open()
            held = self._segments.ensure(local_rank, capacity)
            return Segment(str(held.file.path), held.file.slots, held.file.capacity)

    def acquire(self, local_rank: int, iteration: int) -> Slot:
        """A slot that may be overwritten; blocks until there is one. KeeperError when the worker died meanwhile."""
        began = time.monotonic()
        with self._changed:
            life = self._lives.get(local_rank, 0)
            while (slot := self._try_acquire(local_rank, iteration)) is None:
                self._changed.wait()
                if self._lives.get(local_rank, 0) != life:
                    raise KeeperError(f"worker {local_rank} died while it waited for a slot")
        return Slot(slot.slot, slot.offset, time.monotonic() - began)

    def try_acquire(self, local_rank: int, iteration: int) -> Slot | None:
        """The same without waiting."""
        with self._changed:
            return self._try_acquire(local_rank, iteration)

    def staged(self, local_rank: int, message: Staged) -> None:
        """A worker's stage is whole: offer it, digest it, persist it when it is due. Never blocks for long."""
        with self._changed:
            seat = self._seat()
            held, slot = self._writing.get(local_rank, (None, -1))
            if held is None or slot != message.slot or message.size > held.file.capacity:
                raise KeeperError(f"slot {message.slot} is not what worker {local_rank} was given to write")
            del self._writing[local_rank]
            identity = Identity(seat.round, message.iteration)
            held.table.stage(slot, message.size)
            self._unpin_beginning()
            self._segments.forget_earlier(local_rank)
            if seat.persists and message.persist:
                self._persister.ask(local_rank, identity)
            elif seat.persists and message.iteration % self._interval == 0:
                self._persister.want(local_rank, identity)
            self._changed.notify_all()

    def worker_died(self, local_rank: int) -> None:
        """What it was writing is forgotten; its newest whole state goes to the store unasked."""
        with self._changed:
            self._abandon(local_rank)
            held, seat = self._segments.current(local_rank), self._beginning and self._beginning.seat
            newest = held.table.newest() if held else None
            if held and seat and seat.persists and newest is not None:
                identity = held.table[newest].identity
                if identity and identity.round == seat.round:
                    self._persister.want(local_rank, identity)
            self._changed.notify_all()

    def fetched(self, local_rank: int) -> Fetched:
        """Where the state lies that this round starts from; blocks until it does. All local ranks read the same."""
        with self._changed:
            beginning = self._beginning
            if beginning is None:
                raise KeeperError(f"worker {local_rank} asks what to start from before any round began")
            self._changed.wait_for(lambda: beginning.fetched or beginning.error or self._over(beginning))
            if beginning.fetched is None:
                raise KeeperError(beginning.error or "the round ended while its state was fetched")
            return beginning.fetched

    def flush(self, local_rank: int, iteration: int) -> str:
        """Persist `iteration` of this round and wait for its commit (or a later one's): the manifest's key.

        "" at once on a node that does not persist. KeeperError when the store refuses or the round ends.
        """
        with self._changed:
            beginning, seat = self._beginning, self._seat()
            if not seat.persists:
                return ""
            identity = Identity(seat.round, iteration)
            if not self._persister.under_way(identity):
                self._persister.ask(local_rank, identity)
            self._changed.wait_for(lambda: self._persister.outcome(identity) or self._over(beginning))
            outcome = self._persister.outcome(identity)
            if outcome is None:
                raise KeeperError(f"the round ended before iteration {iteration} was committed")
            if outcome.error:
                raise KeeperError(outcome.error)
            return outcome.manifest

    def persist_newest(self) -> None:
        """Copy the newest state of this round to the store, also on a node that does not persist it. Does not wait."""
        with self._changed:
            seat = self._seat()
            for held in self._segments.all():
                newest = held.table.newest()
                identity = held.table[newest].identity if newest is not None else None
                if identity and identity.round == seat.round:
                    self._persister.want(held.local_rank, identity)

    def committed(self, holding: Holding, manifest: str) -> None:
        """The master made the checkpoint visible."""
        with self._changed:
            self._persister.committed(Identity(holding.round, holding.iteration), manifest)
            self._changed.notify_all()

    def holdings(self, address: str) -> tuple[Holding, ...]:
        """What can be served from this node's memory now, at `address`; missing digests are computed first."""
        found = []
        with self._changed:
            whole = [(held, slot) for held in self._segments.all() for slot in held.table.whole()]
            for held, slot in whole:
                held.table.pin(slot)
        for held, slot in whole:
            self._digest(held, slot)
            facts, index = held.table[slot], held.local_rank
            assert facts.identity is not None
            found.append(
                Holding(
                    *facts.identity, size=facts.size, node=self._node, address=address, index=index, digest=facts.digest
                )
            )
        with self._changed:
            for held, slot in whole:
                held.table.unpin(slot)
            self._changed.notify_all()
        return tuple(found)

    @contextmanager
    def open_shard(self, index: int, round: int, iteration: int) -> Iterator[memoryview]:  # noqa: A002
        """The bytes of a held shard, not overwritten while open. Raises KeyError when it is not held."""
        with self._changed:
            found = self._segments.find(Identity(round, iteration), index)
            if found is None:
                raise KeyError((index, round, iteration))
            found[0].table.pin(found[1])
        try:
            yield found[0].data(found[1]).toreadonly()
        finally:
            self._unpin(*found)

    def beacon(self, local_rank: int) -> tuple[int, str]:
        """Iteration and phase that the worker shows; (0, "") before it announced anything."""
        shown = self._beacon(local_rank)
        return shown.iteration, shown.phase

    def changes(self, local_rank: int) -> tuple[int, float]:
        """How often that worker has changed its beacon, and the Unix time of the last change; zeros before it did."""
        shown = self._beacon(local_rank)
        return shown.changes, shown.time

    def close(self) -> None:
        """Remove all shared memory; every wait ends."""
        with self._changed:
            self._closed = True
            self._persister.close()
            self._segments.unlink()
            self._changed.notify_all()

    def _beacon(self, local_rank: int) -> Beacon:
        with self._changed:
            held = self._segments.current(local_rank)
        return held.file.beacon() if held else Beacon()

    def _seat(self) -> Seat:
        self._check_open()
        if self._beginning is None:
            raise KeeperError("no round has begun on this node")
        return self._beginning.seat

    def _check_open(self) -> None:
        if self._closed:
            raise KeeperError("this node is leaving")

    def _over(self, beginning: _Beginning | None) -> bool:
        return self._closed or self._beginning is not beginning

    def _try_acquire(self, local_rank: int, iteration: int) -> Slot | None:
        seat, held = self._seat(), self._segments.current(local_rank)
        if held is None or not held.file.slots:
            raise KeeperError(f"worker {local_rank} has announced no state to stage")
        if local_rank in self._writing:
            earlier, given = self._writing.pop(local_rank)
            earlier.table.abandon(given)
        slot = held.table.acquire(Identity(seat.round, iteration))
        if slot is None:
            return None
        self._writing[local_rank] = (held, slot)
        return Slot(slot, held.file.offset(slot), 0.0)

    def _abandon(self, local_rank: int) -> None:
        self._lives[local_rank] = self._lives.get(local_rank, 0) + 1
        if local_rank in self._writing:
            held, slot = self._writing.pop(local_rank)
            held.table.abandon(slot)

    def _unpin(self, held: Held, slot: int) -> None:
        with self._changed:
            held.table.unpin(slot)
            self._changed.notify_all()

    def _unpin_beginning(self) -> None:
        if self._beginning is not None and self._beginning.pinned is not None:
            held, slot = self._beginning.pinned
            self._beginning.pinned = None
            held.table.unpin(slot)

    def _digest(self, held: Held, slot: int) -> str:
        """The digest of a pinned slot, computed when it is not known."""
        if not held.table[slot].digest:
            digest = digest_of(held.data(slot))
            with self._changed:
                held.table.digested(slot, held.table[slot].digest or digest)
        return held.table[slot].digest

    def _digest_newest(self) -> None:
        """The digest thread: of each segment the newest state, so that damage after the stage can be found."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._undigested())
                if self._closed:
                    return
                held, slot = self._undigested()[0]
                held.table.pin(slot)
            self._digest(held, slot)
            self._unpin(held, slot)

    def _undigested(self) -> list[tuple[Held, int]]:
        newest = ((held, held.table.newest()) for held in self._segments.all())
        return [(held, slot) for held, slot in newest if slot is not None and not held.table[slot].digest]

    def _fetch(self, beginning: _Beginning) -> None:
        """The fetch thread of one round."""
        restore = beginning.seat.restore
        if restore is None:
            self._begun(beginning, Fetched("", 0, 0, 0, 0, "", ""))
            return
        why: list[str] = []
        found = self._from_memory(restore, why) or self._from_elsewhere(restore, why)
        for line in why:
            _log.warning("restoring iteration %d of round %d: %s", restore.iteration, restore.round, line)
        if found is None:
            told = "; ".join(why) or "nobody holds it"
            text = f"iteration {restore.iteration} of round {restore.round} cannot be restored: {told}"
            with self._changed:
                beginning.error = text
                self._changed.notify_all()
            return
        held, slot, source = found
        facts = held.table[slot]
        place = (str(held.file.path), held.file.offset(slot), facts.size)
        self._begun(beginning, Fetched(*place, restore.round, restore.iteration, facts.digest, source), (held, slot))

    def _begun(self, beginning: _Beginning, fetched: Fetched, pinned: tuple[Held, int] | None = None) -> None:
        with self._changed:
            beginning.fetched = fetched
            if pinned and self._over(beginning):
                pinned[0].table.unpin(pinned[1])
            else:
                beginning.pinned = pinned
            self._changed.notify_all()

    def _from_memory(self, restore: Restore, why: list[str]) -> tuple[Held, int, str] | None:
        """The state in own memory, pinned, when its bytes are still what they were."""
        identity = Identity(restore.round, restore.iteration)
        while True:
            with self._changed:
                found = self._segments.find(identity)
                if found is None:
                    return None
                held, slot = found
                held.table.pin(slot)
            wanted = self._digest(held, slot)
            if digest_of(held.data(slot)) == wanted:
                return held, slot, "memory"
            why.append("own memory: its digest is not what it was when it was staged: the bytes are damaged")
            self._unpin(held, slot)
            with self._changed:
                self._changed.wait_for(lambda held=held, slot=slot: not held.table[slot].pins)
                if held.table.find(identity) == slot:
                    held.table.drop(slot)

    def _from_elsewhere(self, restore: Restore, why: list[str]) -> tuple[Held, int, str] | None:
        """The state from the first source that gives the right bytes, in an own slot, pinned."""
        for source in restore.sources:
            if source.node == self._node and not source.key:
                continue
            try:
                held, slot = self._slot_for(restore, source.size)
            except (SegmentError, KeeperError) as error:
                why.append(str(error))
                continue
            try:
                digest = fetch(source, held.file.slot(slot)[: source.size], self._store, self._token)
            except RestoreError as error:
                why.append(str(error))
                with self._changed:
                    held.table.abandon(slot)
                    self._changed.notify_all()
                continue
            with self._changed:
                held.table.stage(slot, source.size)
                whole = held.table.find(Identity(restore.round, restore.iteration))
                assert whole is not None
                held.table.digested(whole, digest)
                held.table.pin(whole)
                self._changed.notify_all()
            return held, whole, described(source)
        return None

    def _slot_for(self, restore: Restore, size: int) -> tuple[Held, int]:
        """A slot to fetch into: of the first local rank's segment, whose slots are made for this very shard."""
        with self._changed:
            while True:
                self._check_open()
                held = self._segments.ensure(0, size)
                slot = held.table.acquire(Identity(restore.round, restore.iteration))
                if slot is not None:
                    return held, slot
                self._changed.wait()
