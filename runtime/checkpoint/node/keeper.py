"""The agent's side of checkpoints: who may write which slot, what is held whole, what goes to the store, where a round
starts from.

Runs in the agent's process. Every method may be called from any thread; `acquire`, `fetched`, `flush`, `holdings` and
`keep` may block. One thread computes digests, one persists, one fetches at the beginning of each round,
one a local rank sees to the copy of its shard. What cannot be done raises KeeperError (or SegmentError: no shared
memory), one line for the worker.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep.runtime.checkpoint.errors import KeeperError, RestoreError
from everstep.runtime.checkpoint.node.peer_copies import Sender, receive
from everstep.runtime.checkpoint.node.persist import Persister
from everstep.runtime.checkpoint.node.persist_interval import Cadence
from everstep.runtime.checkpoint.node.round_restore import UNREACHABLE_S, Around, Beginning
from everstep.runtime.checkpoint.node.segments import Held, Segments, segment_prefix
from everstep.runtime.checkpoint.node.slots import Identity
from everstep.runtime.checkpoint.shard.digests import Digests, seal
from everstep.runtime.checkpoint.shard.segment import Beacon
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.keeper import Place
from everstep.runtime.protocol.messages import Holding, Refusal, Seat
from everstep.runtime.protocol.worker_link import Fetched, Segment, Slot, Staged
from everstep.runtime.store import Store

_SHM = Path("/dev/shm")
_log = logging.getLogger("everstep.checkpoint")
SLOTS = 3
"""Of each segment: one is written, one is read, one is whole."""
_ALL_COPIED = 3
"""A rank that stages its third state of a round knows that all have staged two and copied one to the peers of it."""


class Keeper:
    """Keeps the staged states of one node."""

    def __init__(
        self,
        *,
        job: str,
        node: str,
        store: Store,
        credentials: Credentials,
        persist_interval: int,
        on_persisted: Callable[[Holding], None],
        on_unrestored: Callable[[tuple[Refusal, ...]], None],
        overhead: float = 0.0,
        workers: int = 1,
        persists: bool = True,
        directory: Path = _SHM,
        slots: int = SLOTS,
        unreachable_s: float = UNREACHABLE_S,
    ) -> None:
        """`on_persisted` is called in a thread when a shard lies whole in the store, `on_unrestored` when no source
        gives what the round begins from: the agent tells the master.

        With an `overhead` (a share of the time) the interval is measured (see `cadence`). `workers` are the local ranks
        of this node; without `persists` the store is not there for other nodes to read.
        """
        self._node, self._cadence, self._persists = node, Cadence(persist_interval, overhead), persists
        self._overhead, self._thinned = overhead, ""
        """Why workers do not stage every iteration."""
        self._changed = threading.Condition()
        self._segments = Segments(self._changed, directory, segment_prefix(job, node), slots)
        self._segments.reclaim()
        self._beginning: Beginning | None = None
        self._sealing = threading.Lock()
        self._writing: dict[int, tuple[Held, int]] = {}
        self._lives: dict[int, int] = {}
        """Deaths of each local rank: a wait that began before one ends with it."""
        self._closed = False
        self._address = ""
        """Where peers read this node's memory, as the last join told it."""
        self._sender = Sender(self._segments, credentials, self._holding)
        self._around = Around(
            self._changed, self._segments, store, credentials, node, workers, self._digest, self._sender.send,
            on_unrestored, unreachable_s,
        )  # fmt: skip
        self._persister = Persister(
            self._changed, self._segments, store, job, on_persisted, self._digest, self._cadence
        )
        threading.Thread(target=self._digest_newest, name="everstep-digest", daemon=True).start()

    @property
    def skipped(self) -> int:
        """Persists that the interval asked for and that a newer state took the place of."""
        return self._persister.skipped

    def interval(self) -> tuple[int, str]:
        """Iterations between two states that go to the store, and why so many; (0, "") where none does."""
        if not self._persists:
            return 0, ""
        iterations, why = self._cadence.interval
        return iterations, f"{why}; {self._thinned}" if self._thinned else why

    def new_round(self, seat: Seat) -> None:
        """A round begins, its workers are not started yet: fetch `seat.restore` into own memory, in a thread."""
        with self._changed:
            for local_rank in list(self._writing):
                self._abandon(local_rank)
            if self._beginning is not None:
                self._beginning.end()
            self._sender.begin(seat.peer)
            self._persister.begin(seat.round)
            restore = seat.restore
            self._segments.begin(seat.round, (restore.round, restore.iteration) if restore else (0, 0))
            self._beginning = Beginning(seat, self._around)
            self._cadence.round(seat.restart_count, time.monotonic())
            self._changed.notify_all()

    def announce(self, local_rank: int, capacity: int, sharded: bool = False) -> Segment:
        """Make room for a worker's slots; the same capacity again finds the old segment with all that it holds. Their
        memory may still be coming: who acquires one waits for it.

        `sharded`: what the worker stages is its rank's own shard; else it is the same on every rank.
        """
        with self._changed:
            self._check_open()
            held = self._segments.for_worker(local_rank, capacity, sharded, self._sender.has_peer)
            return Segment(str(held.file.path), held.file.slots, held.file.capacity, self._overhead)

    def acquire(self, local_rank: int, iteration: int) -> Slot:
        """A slot that may be overwritten; blocks until there is one. KeeperError when the worker died meanwhile, or
        there is no memory for it."""
        waited_s = 0.0
        with self._changed:
            life = self._lives.get(local_rank, 0)
            while (slot := self._try_acquire(local_rank, iteration)) is None:
                held, began = self._segments.current(local_rank), time.monotonic()
                coming = held is not None and held.table.absent()
                self._changed.wait()
                waited_s += time.monotonic() - began if coming else 0.0
                if self._lives.get(local_rank, 0) != life:
                    raise KeeperError(f"worker {local_rank} died while it waited for a slot")
        return Slot(slot.slot, slot.offset, waited_s)

    def try_acquire(self, local_rank: int, iteration: int) -> Slot | None:
        """The same without waiting."""
        with self._changed:
            return self._try_acquire(local_rank, iteration)

    def staged(self, local_rank: int, message: Staged) -> None:
        """A worker's stage is whole: offer it, digest it, persist it when it is due. Never blocks for long."""
        with self._changed:
            self._seat()
            held, slot = self._writing.get(local_rank, (None, -1))
            if held is None or slot != message.slot or message.size > held.file.capacity:
                raise KeeperError(f"slot {message.slot} is not what worker {local_rank} was given to write")
            try:
                Digests(held.file.slot(slot)[: message.size])
            except RestoreError as error:
                raise KeeperError(f"iteration {message.iteration} of worker {local_rank}: {error}") from None
            identity = self._identity(held, message.iteration)
            if held.table[slot].identity != identity:
                raise KeeperError(f"slot {slot} was given to worker {local_rank} for another iteration")
            del self._writing[local_rank]
            held.table.stage(slot, message.size)
            assert self._beginning is not None
            stages = self._beginning.staged(local_rank)
            self._segments.forget_earlier(local_rank)
            whole = held.table.find(identity)
            if held.sharded and whole is not None:
                self._sender.send(local_rank, held, whole)
            if stages == _ALL_COPIED:
                self._segments.forget_copies(identity.round)
            self._thinned = message.thinned
            self._cadence.staged(message.iteration, time.monotonic())
            due = self._cadence.due(message.iteration)
            if self._to_store(held) and (message.persist or (due and held.sharded)):
                self._persister.ask(local_rank, identity)  # All ranks put the same iterations, however slow a store is.
            elif self._to_store(held) and due:
                self._persister.want(local_rank, identity)
            self._changed.notify_all()

    def worker_died(self, local_rank: int) -> None:
        """What it was writing is forgotten; its newest whole state goes to the store unasked."""
        with self._changed:
            self._abandon(local_rank)
            held = self._segments.current(local_rank)
            if held and self._beginning and not self._closed and self._to_store(held):
                self._persist_newest(local_rank)
            self._changed.notify_all()

    def fetched(self, local_rank: int) -> Fetched:
        """Where the state lies that this round starts from; blocks until it does, or the round ends because no source
        has it. All local ranks read the same."""
        with self._changed:
            beginning = self._beginning
            if beginning is None:
                raise KeeperError(f"worker {local_rank} asks what to start from before any round began")
            answer = self._changed.wait_for(
                lambda: beginning.answer(local_rank) or beginning.error or self._over(beginning)
            )
            if not isinstance(answer, Fetched):
                raise KeeperError(beginning.error or "the round ended while its state was fetched")
            return answer

    def near(self, local_rank: int) -> Place | None:
        """Where that will be, if its bytes are right."""
        with self._changed:
            return self._beginning.near(local_rank) if self._beginning else None

    def flush(self, local_rank: int, iteration: int) -> str:
        """Persist `iteration` of this round and wait for its commit (or a later one's): the manifest's key.

        If it was overwritten meanwhile, the newest of this round takes its place. "" at once on a node that does not
        persist. KeeperError when the store refuses or the round ends.
        """
        with self._changed:
            self._seat()
            beginning, held = self._beginning, self._segments.current(local_rank)
            if held is None or not self._to_store(held):
                return ""
            identity = self._identity(held, iteration)
            if not self._persister.under_way(identity):
                # Not of a shard: all ranks must put the same iteration.
                identity = identity if held.sharded else self._segments.or_newer(identity, local_rank)
                self._persister.ask(local_rank, identity)
            self._changed.wait_for(lambda: self._persister.outcome(identity) or self._over(beginning))
            outcome = self._persister.outcome(identity)
            if outcome is None:
                raise KeeperError(f"the round ended before iteration {identity.iteration} was committed")
            if outcome.error:
                raise KeeperError(outcome.error)
            return outcome.manifest

    def persist_newest(self) -> None:
        """Copy the newest state of this round to the store, also on a node that does not persist it. Does not wait."""
        with self._changed:
            self._seat()
            for local_rank in {held.local_rank for held in self._segments.staged()}:
                self._persist_newest(local_rank)

    def committed(self, holding: Holding, manifest: str) -> None:
        """The master made the checkpoint visible."""
        with self._changed:
            identity = Identity(holding.round, holding.iteration, holding.shard, holding.shards)
            self._persister.committed(identity, manifest)
            self._changed.notify_all()

    def holdings(self, address: str) -> tuple[Holding, ...]:
        """What can be served from this node's memory now, at `address`; missing digests are computed first."""
        found = []
        with self._changed:
            self._address = address
            whole = [(held, slot) for held in self._segments.all() for slot in held.table.whole()]
            for held, slot in whole:
                held.table.pin(slot)
        for held, slot in whole:
            try:
                found.append(self._holding(held, slot))
            except RestoreError as error:
                self._tell_damaged(held, slot, error)
            self._unpin(held, slot)
        return tuple(found)

    def keep(self, source: Holding, came: Callable[[], None]) -> None:
        """Fetch a copy of a peer's shard into this node's memory; returns when it is held. Raises KeeperError."""
        with self._changed:
            self._check_open()
        receive(source, self._around, came)

    @contextmanager
    def open_shard(self, round: int, iteration: int, shard: int) -> Iterator[memoryview]:  # noqa: A002
        """The bytes of a held shard, not overwritten while open. Raises KeyError when it is not held."""
        with self._changed:
            found = self._segments.serve(round, iteration, shard)
            if found is None:
                raise KeyError((round, iteration, shard))
            held, slot = found
            held.table.pin(slot)
        try:
            yield held.data(slot)
        finally:
            self._unpin(held, slot)

    def beacon(self, local_rank: int) -> tuple[int, str]:
        """Iteration and phase that the worker shows; (0, "") before it announced anything."""
        return (shown := self._beacon(local_rank)).iteration, shown.phase

    def changes(self, local_rank: int) -> tuple[int, float]:
        """How often that worker has changed its beacon, and the Unix time of the last change; zeros before it did."""
        return (shown := self._beacon(local_rank)).changes, shown.time

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
        return held.file.read_beacon() if held else Beacon()

    def _seat(self) -> Seat:
        self._check_open()
        if self._beginning is None:
            raise KeeperError("no round has begun on this node")
        return self._beginning.seat

    def _check_open(self) -> None:
        if self._closed:
            raise KeeperError("this node is leaving")

    def _identity(self, held: Held, iteration: int) -> Identity:
        """What a worker's stage of that iteration is in this round."""
        seat = self._seat()
        if not held.sharded:
            return Identity(seat.round, iteration)
        return Identity(seat.round, iteration, seat.first_rank + held.local_rank, seat.world_size)

    def _to_store(self, held: Held) -> bool:
        """Does this node put what this segment holds into the store in this round?"""
        return self._persists and (held.sharded or self._seat().persists)

    def _persist_newest(self, local_rank: int) -> None:
        """Put the newest state of this round; of a sharded one the newest two, for a rank that was killed may have
        staged one iteration less than this one."""
        held = self._segments.current(local_rank)
        if not self._persists or held is None:
            return
        newest = self._segments.newest(local_rank, self._seat().round)
        for identity in reversed(newest[: 1 + held.sharded]):
            if not held.sharded:
                self._persister.want(local_rank, identity)
            elif not self._persister.under_way(identity):
                self._persister.ask(local_rank, identity)

    def _over(self, beginning: Beginning | None) -> bool:
        return self._closed or self._beginning is not beginning

    def _try_acquire(self, local_rank: int, iteration: int) -> Slot | None:
        self._check_open()
        held = self._segments.current(local_rank)
        if held is None or not held.file.slots:
            raise KeeperError(f"worker {local_rank} has announced no state to stage")
        if self._sender.busy(local_rank):
            return None
        if local_rank in self._writing:
            earlier, given = self._writing.pop(local_rank)
            earlier.table.abandon(given)
        slot = held.table.acquire(self._identity(held, iteration))
        if slot is None:
            if held.broken:
                raise KeeperError(held.broken)
            return None
        self._writing[local_rank] = (held, slot)
        return Slot(slot, held.file.slot_offset(slot), 0.0)

    def _abandon(self, local_rank: int) -> None:
        self._lives[local_rank] = self._lives.get(local_rank, 0) + 1
        if local_rank in self._writing:
            held, slot = self._writing.pop(local_rank)
            held.table.abandon(slot)

    def _unpin(self, held: Held, slot: int) -> None:
        with self._changed:
            self._segments.unpin(held, slot)

    def _holding(self, held: Held, slot: int) -> Holding:
        """What others are told of a pinned slot."""
        digest, facts = self._digest(held, slot), held.table[slot]
        assert facts.identity is not None
        place = {"node": self._node, "address": self._address, "index": max(held.local_rank, 0)}
        return Holding(*facts.identity, size=facts.size, digest=digest, **place)

    def _digest(self, held: Held, slot: int) -> str:
        """The digest of a pinned slot, computed when it is not known."""
        with self._sealing:
            if not held.table[slot].digest:
                digest = seal(held.data(slot))
                with self._changed:
                    held.table.digested(slot, digest)
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
            try:
                self._digest(held, slot)
            except RestoreError as error:
                self._tell_damaged(held, slot, error)
                self._unpin(held, slot)
                with self._changed:
                    self._changed.wait_for(lambda held=held, slot=slot: self._closed or not held.table[slot].pins)
                    if (held, slot) in self._undigested():
                        held.table.drop(slot)
                        self._changed.notify_all()
            else:
                self._unpin(held, slot)

    def _tell_damaged(self, held: Held, slot: int, error: RestoreError) -> None:
        identity = held.table[slot].identity
        assert identity is not None
        _log.warning("iteration %d of round %d is damaged in memory: %s", identity.iteration, identity.round, error)

    def _undigested(self) -> list[tuple[Held, int]]:
        newest = ((held, held.table.newest()) for held in self._segments.all())
        return [(held, slot) for held, slot in newest if slot is not None and not held.table[slot].digest]
