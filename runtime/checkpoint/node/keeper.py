"""The keeper of a node's staged states: the shell around `keeper_state`, which decides.

Runs in the agent's process. Every method may be called from any thread; `acquire`, `fetched`, `flush`, `holdings` and
`keep` may block. Each call is an event: under one lock it is handled, and what was decided is begun in that order, none
of which takes long. What does (memory, digests, copies) threads do without the lock, and tell by another event. What
cannot be done raises KeeperError (or SegmentError: no shared memory), one line for the worker.
"""

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from everstep.runtime.checkpoint.errors import KeeperError, RestoreError, SegmentError
from everstep.runtime.checkpoint.node.core import events
from everstep.runtime.checkpoint.node.core.events import Action, Event
from everstep.runtime.checkpoint.node.core.keeper_core import KeeperOptions, KeeperState
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.checkpoint.node.work import SegmentFiles, Workers, segment_prefix
from everstep.runtime.checkpoint.shard.digests import Digests
from everstep.runtime.checkpoint.shard.fetch import describe
from everstep.runtime.checkpoint.shard.segment import Beacon
from everstep.runtime.checkpoint.stored.keys import shard_key
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol import worker_link
from everstep.runtime.protocol.keeper import Place
from everstep.runtime.protocol.messages import Holding, Refusal, Seat
from everstep.runtime.store import Store

_SHM = Path("/dev/shm")
_log = logging.getLogger("everstep.checkpoint")


class Keeper:
    """Keeps the staged states of one node."""

    def __init__(
        self,
        options: KeeperOptions,
        store: Store,
        credentials: Credentials,
        on_persisted: Callable[[Holding], None],
        on_unrestored: Callable[[tuple[Refusal, ...]], None],
        directory: Path = _SHM,
    ) -> None:
        """`on_persisted` is called in a thread when a shard lies whole in the store, `on_unrestored` when no source
        gives what the round begins from: the agent tells the master."""
        self._overhead, self._credentials = options.overhead, credentials
        self._on_persisted, self._on_unrestored = on_persisted, on_unrestored
        self._state = KeeperState(options, partial(_key, options.job))
        self._lock = threading.Lock()
        """Held while an event is handled and what follows from it is begun; never while bytes are copied, compared,
        digested or sent."""
        self._earlier = threading.Condition(self._lock)
        """A deadline has come nearer."""
        self._deadline: float | None = None
        """For which the clock waits."""
        self._closed = False
        self._files = SegmentFiles(directory, segment_prefix(options.job, options.node))
        self._workers = Workers(self._files, store, credentials, self._feed)
        self._tickets = itertools.count()
        self._asked: dict[int, Future[Any]] = {}
        """Who waits, by ticket."""
        self._came: dict[int, Callable[[], None]] = {}
        """Who is told, by ticket, that a copy gets on."""
        threading.Thread(target=self._tick, name="everstep-keeper", daemon=True).start()

    @property
    def skipped(self) -> int:
        """Persists that the interval asked for and that a newer state took the place of."""
        return self._state.skipped

    def interval(self) -> tuple[int, str]:
        """Iterations between two states that go to the store, and why so many; (0, "") where none does."""
        return self._state.interval()

    def new_round(self, seat: Seat) -> None:
        """A round begins, its workers are not started yet: fetch `seat.restore` into own memory, in a thread."""
        self._ask(lambda ticket: events.BeginRound(ticket, seat)).result()

    def announce(self, local_rank: int, capacity: int, sharded: bool = False) -> worker_link.Segment:
        """Make room for a worker's slots; the same capacity again finds the old segment with all that it holds. Their
        memory may still be coming: who acquires one waits for it.

        `sharded`: what the worker stages is its rank's own shard; else it is the same on every rank.
        """
        return self._ask(lambda ticket: events.Announce(ticket, local_rank, capacity, sharded)).result()

    def acquire(self, local_rank: int, iteration: int) -> worker_link.Slot:
        """A slot that may be overwritten; blocks until there is one. KeeperError when the worker died meanwhile, or
        there is no memory for it."""
        return self._ask(lambda ticket: events.Acquire(ticket, local_rank, iteration, waits=True)).result()

    def try_acquire(self, local_rank: int, iteration: int) -> worker_link.Slot | None:
        """The same without waiting."""
        return self._ask(lambda ticket: events.Acquire(ticket, local_rank, iteration, waits=False)).result()

    def staged(self, local_rank: int, message: worker_link.Staged) -> None:
        """A worker's stage is whole: offer it, digest it, persist it when it is due. Never blocks for long."""
        with self._lock:
            given = self._state.given(local_rank)
            data = self._files.data(given)[: message.size] if given else None
        flaw = ""
        if data is not None:  # Only that worker writes it.
            try:
                Digests(data)
            except RestoreError as error:
                flaw = str(error)
        told = (message.slot, message.iteration, message.size, message.persist, message.thinned)
        self._ask(lambda ticket: events.Stage(ticket, local_rank, *told, flaw)).result()

    def worker_died(self, local_rank: int) -> None:
        """What it was writing is forgotten; its newest whole state goes to the store unasked."""
        self._ask(lambda ticket: events.BuryWorker(ticket, local_rank)).result()

    def fetched(self, local_rank: int) -> worker_link.Fetched:
        """Where the state lies that this round starts from; blocks until it does, or the round ends because no source
        has it. All local ranks read the same."""
        return self._ask(lambda ticket: events.AwaitStart(ticket, local_rank)).result()

    def near(self, local_rank: int) -> Place | None:
        """Where that will be, if its bytes are right."""
        with self._lock:
            near = self._state.near(local_rank)
            return self._place(near) if near else None

    def flush(self, local_rank: int, iteration: int) -> str:
        """Persist `iteration` of this round and wait for its commit (or a later one's): the manifest's key.

        If it was overwritten meanwhile, the newest of this round takes its place. "" at once on a node that does not
        persist. KeeperError when the store refuses or the round ends.
        """
        return self._ask(lambda ticket: events.Flush(ticket, local_rank, iteration)).result()

    def persist_newest(self) -> None:
        """Copy the newest state of this round to the store, also on a node that does not persist it. Does not wait."""
        self._ask(events.PersistNewest).result()

    def committed(self, holding: Holding, manifest: str) -> None:
        """The master made the checkpoint visible."""
        identity = Identity(holding.round, holding.iteration, holding.shard, holding.shards)
        self._feed(events.Committed(identity, manifest))

    def holdings(self, address: str) -> tuple[Holding, ...]:
        """What can be served from this node's memory now, at `address`; missing digests are computed first."""
        return self._ask(lambda ticket: events.ListHoldings(ticket, address)).result()

    def keep(self, source: Holding, came: Callable[[], None]) -> None:
        """Fetch a copy of a peer's shard into this node's memory; returns when it is held. Raises KeeperError.

        `came` is called whenever it gets on: memory or bytes have come.
        """
        self._ask(lambda ticket: events.KeepCopy(ticket, source), came).result()

    @contextmanager
    def open_shard(self, round: int, iteration: int, shard: int) -> Iterator[memoryview]:  # noqa: A002
        """The bytes of a held shard, not overwritten while open. Raises KeyError when it is not held."""
        ticket = next(self._tickets)
        data = self._ask(lambda _: events.Read(ticket, round, iteration, shard), ticket=ticket).result()
        if data is None:
            raise KeyError((round, iteration, shard))
        try:
            yield data
        finally:
            self._feed(events.ReaderGone(ticket))

    def beacon(self, local_rank: int) -> tuple[int, str]:
        """Iteration and phase that the worker shows; (0, "") before it announced anything."""
        return (shown := self._beacon(local_rank)).iteration, shown.phase

    def changes(self, local_rank: int) -> tuple[int, float]:
        """How often that worker has changed its beacon, and the Unix time of the last change; zeros before it did."""
        return (shown := self._beacon(local_rank)).changes, shown.time

    def close(self) -> None:
        """Remove all shared memory; every wait ends."""
        self._feed(events.Close())
        self._workers.close()
        with self._lock:
            self._closed = True
            self._earlier.notify()

    def _beacon(self, local_rank: int) -> Beacon:
        with self._lock:
            current = self._state.segments.current(local_rank)
            file = self._files[current.number] if current and current.made else None
        return file.read_beacon() if file else Beacon()

    # Events in, actions out

    def _ask(
        self,
        question: Callable[[int], events.Question],
        came: Callable[[], None] = lambda: None,
        ticket: int | None = None,
    ) -> Future[Any]:
        """The answer, when it comes. Whoever asks waits for it without the lock."""
        ticket = next(self._tickets) if ticket is None else ticket
        future = self._asked[ticket] = Future()
        self._came[ticket] = came
        self._feed(question(ticket))
        return future

    def _feed(self, event: Event) -> None:
        """Handle it, and begin what follows. What the master is to be told it is told without the lock."""
        told: list[Callable[[], None]] = []
        with self._lock:
            todo = deque([event])
            while todo:
                for action in self._state.handle(todo.popleft(), time.monotonic()):
                    if made := self._begin(action, told):
                        todo.append(made)
            deadline = self._state.next_deadline()
            if deadline is not None and (self._deadline is None or deadline < self._deadline):
                self._earlier.notify()
        for tell in told:
            tell()

    def _begin(self, action: Action, told: list[Callable[[], None]]) -> Event | None:
        match action:
            case events.Answer(ticket, reply):
                self._asked.pop(ticket).set_result(self._reply(reply))
                self._came.pop(ticket, None)
            case events.Refuse(ticket, why, memory):
                self._asked.pop(ticket).set_exception(SegmentError(why) if memory else KeeperError(why))
                self._came.pop(ticket, None)
            case events.MakeSegment():
                return self._files.make(action)
            case events.EndAllocation():
                self._files.end_allocation(action)
            case events.RemoveSegment(segment):
                self._files.remove(segment)
            case events.TellPersisted(holding):
                told.append(partial(self._on_persisted, holding))
            case events.TellUnrestored(refusals):
                told.append(partial(self._on_unrestored, refusals))
            case events.GotOn(ticket):
                self._came[ticket]()
            case events.Warn(text):
                _log.warning("%s", text)
            case events.Fetch(ticket=ticket) if ticket is not None:
                self._workers.do(action, self._came[ticket])
            case _:
                self._workers.do(action, lambda: None)
        return None

    def _tick(self) -> None:
        """The clock: says when a deadline has come."""
        while True:
            with self._lock:
                self._deadline = self._state.next_deadline()
                left = None if self._deadline is None else self._deadline - time.monotonic()
                if not self._closed and (left is None or left > 0):
                    self._earlier.wait(left)
                if self._closed:
                    return
                due = self._deadline is not None and self._deadline <= time.monotonic()
            if due:
                self._feed(events.Tick())

    # What an answer is for who asked

    def _reply(self, reply: events.Reply) -> object:
        match reply:
            case events.Granted(where, waited_s):
                return worker_link.Slot(where.slot, self._files[where.segment].slot_offset(where.slot), waited_s)
            case events.Where():
                return self._files.data(reply)
            case events.Start():
                return self._start(reply)
            case int():
                file = self._files[reply]
                return worker_link.Segment(str(file.path), file.slots, file.capacity, self._overhead)
        return reply

    def _place(self, where: events.Where) -> Place:
        file = self._files[where.segment]
        return Place(str(file.path), file.slot_offset(where.slot), where.size)

    def _start(self, start: events.Start) -> worker_link.Fetched:
        of, shown = (start.round, start.iteration), (self._credentials.token, self._credentials.authority)
        if not start.iteration and start.where is None:
            return worker_link.Fetched("", 0, 0, 0, 0, "", "")
        if start.where is None:
            return worker_link.Fetched("", 0, 0, *of, "", f"{start.shards[0].shards} shards", start.shards, *shown)
        source = describe(start.source) if start.source else "memory"
        return worker_link.Fetched(
            *self._place(start.where), *of, start.digest, source, start.shards, *shown, start.why
        )


def _key(job: str, identity: Identity) -> str:
    return shard_key(job, identity.round, identity.iteration, identity.shard)
