"""The keeper of a node's staged states: the shell around `core.keeper_core`, which decides.

Runs in the agent's process. Every method may be called from any thread. Each call is an event: under one lock it is
handled and the actions that follow are started, in order; none takes long. What takes long (memory, digests, copies) is
done by threads without the lock, and ends with another event. Requests that cannot be met raise KeeperError (or
SegmentError: no shared memory), one line for the worker.
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

from everstep.runtime.checkpoint.errors import RestoreError
from everstep.runtime.checkpoint.node.core import actions, events
from everstep.runtime.checkpoint.node.core.actions import Action
from everstep.runtime.checkpoint.node.core.events import Event, Question, SegmentMade
from everstep.runtime.checkpoint.node.core.keeper_core import KeeperCore
from everstep.runtime.checkpoint.node.core.options import KeeperOptions
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.checkpoint.node.keeper_io import SegmentFiles, WorkThreads
from everstep.runtime.checkpoint.shard.digests import Digests
from everstep.runtime.checkpoint.shard.fetch import describe
from everstep.runtime.checkpoint.shard.segment import Beacon
from everstep.runtime.checkpoint.stored.keys import shard_key
from everstep.runtime.net.tls import Credentials
from everstep.runtime.platform.debris import SHARED_MEMORY, memory_prefix
from everstep.runtime.protocol import worker_link
from everstep.runtime.protocol.holdings import CopyRequest, Holding, Refusal, Tier
from everstep.runtime.protocol.keeper import MemoryRange
from everstep.runtime.protocol.messages import Evidence
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.store import Store

_log = logging.getLogger("everstep.checkpoint")


def _ignore_progress() -> None:
    pass


class Keeper:
    """Implements everstep.runtime.protocol.keeper.Keeper, which describes its methods."""

    def __init__(
        self,
        options: KeeperOptions,
        store: Store,
        credentials: Credentials,
        on_persisted: Callable[[Holding], None],
        on_unrestored: Callable[[tuple[Refusal, ...]], None],
        directory: Path = SHARED_MEMORY,
        on_evidence: Callable[[Evidence], None] = lambda _: None,
    ) -> None:
        """`on_persisted` is called in a thread when a shard is complete in the store, `on_unrestored` when no source
        supplies the state that the round was to start from, `on_evidence` with the digests of a state to be compared:
        the agent tells the master."""
        self._overhead, self._credentials = options.overhead, credentials
        self._on_persisted, self._on_unrestored, self._on_evidence = on_persisted, on_unrestored, on_evidence
        self._node = options.node
        self._core = KeeperCore(options, partial(_key, options.job))
        self._lock = threading.Lock()
        """Held while an event is handled and its actions are started; never while bytes are copied, compared, digested
        or sent, or memory is freed."""
        self._earlier_deadline = threading.Condition(self._lock)
        self._deadline: float | None = None
        """The one that the clock waits for."""
        self._closed = False
        self._files = SegmentFiles(directory, memory_prefix(options.job, options.node))
        self._threads = WorkThreads(self._files, store, credentials, self._feed)
        self._tickets = itertools.count()
        self._waiting: dict[int, tuple[Future[Any], Callable[[], None]]] = {}
        """By ticket: the question's answer, and who is told of its progress."""
        threading.Thread(target=self._run_clock, name="everstep-keeper", daemon=True).start()

    @property
    def skipped(self) -> int:
        """Persists of the interval that a newer state replaced."""
        return self._core.skipped

    def interval(self) -> tuple[int, str]:
        """See the protocol."""
        return self._core.interval()

    def new_round(self, seat: Seat) -> None:
        """See the protocol."""
        self._ask(events.BeginRound(next(self._tickets), seat))

    def announce(self, local_rank: int, capacity: int, is_sharded: bool = False) -> worker_link.Segment:
        """See the protocol. The same capacity again finds the old segment with all its states. Slots may still be being
        allocated; `acquire` waits for that."""
        return self._ask(events.Announce(next(self._tickets), local_rank, capacity, is_sharded))

    def reserve(self, capacity: int) -> None:
        """See the protocol."""
        self._ask(events.Announce(next(self._tickets), 0, capacity, sharded=False, waits=True))

    def acquire(self, local_rank: int, iteration: int) -> worker_link.Slot:
        """See the protocol. KeeperError if the worker dies meanwhile, or there is no memory for the slot."""
        return self._ask(events.Acquire(next(self._tickets), local_rank, iteration, waits=True))

    def try_acquire(self, local_rank: int, iteration: int) -> worker_link.Slot | None:
        """See the protocol."""
        return self._ask(events.Acquire(next(self._tickets), local_rank, iteration, waits=False))

    def commit_stage(self, local_rank: int, stage: worker_link.Staged) -> None:
        """See the protocol. KeeperError if the bytes are no shard."""
        with self._lock:
            granted = self._core.writable_slot(local_rank)
            data = self._files.data(granted)[: stage.size] if granted else None
        flaw = ""
        if data is not None:  # Only that worker writes it.
            try:
                Digests(data)
            except RestoreError as error:
                flaw = str(error)
        facts = (stage.slot, stage.iteration, stage.size, stage.persist, stage.thinned, flaw)
        self._ask(events.CommitStage(next(self._tickets), local_rank, *facts))

    def want_stages(self) -> None:
        """See the protocol. Ranks of a sharded state would see the wish in different iterations, and stage states that
        have no other rank's part."""
        with self._lock:
            for segment in self._core.segments.of_workers():
                if segment.has_file and not segment.sharded:
                    self._files[segment.number].want_stage()

    def worker_died(self, local_rank: int) -> None:
        """See the protocol. The worker's newest state goes to the store unasked."""
        self._feed(events.WorkerDied(local_rank))

    def wait_for_restore(self, local_rank: int) -> worker_link.Fetched:
        """See the protocol. KeeperError if the round ends because no source supplies the state."""
        return self._ask(events.WaitForRestore(next(self._tickets), local_rank))

    def expected_range(self, local_rank: int) -> MemoryRange | None:
        """See the protocol."""
        with self._lock:
            location = self._core.expected_location(local_rank)
            return self._memory_range(location) if location else None

    def flush(self, local_rank: int, iteration: int) -> str:
        """See the protocol. If the iteration was overwritten, the newest of this round takes its place; the commit of a
        later one is as good. "" at once on a node that does not persist. KeeperError if the store refuses or the round
        ends."""
        return self._ask(events.Flush(next(self._tickets), local_rank, iteration))

    def persist_newest(self) -> None:
        """See the protocol."""
        self._ask(events.PersistNewest(next(self._tickets)))

    def drain(self) -> None:
        """See the protocol. KeeperError if the node is leaving."""
        self._ask(events.Drain(next(self._tickets)))

    def note_commit(self, holding: Holding, manifest: str) -> None:
        """See the protocol."""
        identity = Identity(holding.round, holding.iteration, holding.shard, holding.shards)
        self._feed(events.CheckpointCommitted(identity, manifest))

    def note_certified(self, evidence: Evidence) -> None:
        """See the protocol."""
        identity = Identity(evidence.round, evidence.iteration, evidence.shard, evidence.shards)
        self._feed(events.StateCertified(identity))

    def holdings(self, address: str) -> tuple[Holding, ...]:
        """See the protocol. Missing digests are computed first."""
        return self._ask(events.ListHoldings(next(self._tickets), address))

    def copy_shard(self, request: CopyRequest, on_progress: Callable[[], None]) -> None:
        """See the protocol. KeeperError if the copy cannot be had."""
        self._ask(events.CopyShard(next(self._tickets), request.source, request.copies), on_progress)

    @contextmanager
    def open_shard(self, round: int, iteration: int, shard: int) -> Iterator[memoryview]:  # noqa: A002
        """See the protocol."""
        ticket = next(self._tickets)
        data = self._ask(events.OpenShard(ticket, round, iteration, shard))
        if data is None:
            raise KeyError((round, iteration, shard))
        try:
            yield data
        finally:
            self._feed(events.ReaderGone(ticket))

    def beacon(self, local_rank: int) -> tuple[int, str]:
        """See the protocol. (0, "") before the worker has announced a state."""
        return (beacon := self._read_beacon(local_rank)).iteration, beacon.phase

    def changes(self, local_rank: int) -> tuple[int, float]:
        """See the protocol."""
        return (beacon := self._read_beacon(local_rank)).changes, beacon.time

    def close(self) -> None:
        """See the protocol. Every wait ends."""
        self._feed(events.NodeLeaving())
        self._threads.close()
        with self._lock:
            self._closed = True
            self._earlier_deadline.notify()

    def _read_beacon(self, local_rank: int) -> Beacon:
        with self._lock:
            segment = self._core.segments.current(local_rank)
            file = self._files[segment.number] if segment and segment.has_file else None
        return file.read_beacon() if file else Beacon()

    # Events in, actions out

    def _ask(self, question: Question, on_progress: Callable[[], None] = _ignore_progress) -> Any:
        """Wait for the answer, without the lock."""
        future: Future[Any] = Future()
        self._waiting[question.ticket] = future, on_progress
        self._feed(question)
        return future.result()

    def _feed(self, event: Event) -> None:
        """Handle the event and start what follows. The master is told, and memory is freed, without the lock."""
        later: list[Callable[[], object]] = []
        with self._lock:
            pending = deque([event])
            while pending:
                for action in self._core.handle(pending.popleft(), time.monotonic()):
                    if task := self._start(action, later):
                        pending.append(task)
            deadline = self._core.next_deadline()
            if deadline is not None and (self._deadline is None or deadline < self._deadline):
                self._earlier_deadline.notify()
        for call in later:
            call()

    def _start(self, action: Action, later: list[Callable[[], object]]) -> SegmentMade | None:
        match action:
            case actions.Answer(ticket, reply):
                answer = partial(self._waiting.pop(ticket)[0].set_result, self._translate(reply))
                # It does not overtake what the master is told: whoever has drained the queue knows all reports.
                later.append(answer) if later else answer()
            case actions.Refuse(ticket, error):
                self._waiting.pop(ticket)[0].set_exception(error)
            case actions.MakeSegment():
                return self._files.make(action)
            case actions.EndAllocation():
                self._files.end_allocation(action)
            case actions.RemoveSegment(segment):
                file = self._files.remove(segment)
                later.append(lambda: file)  # Its memory is unmapped with this last reference.
            case actions.ReportPersisted(holding):
                later.append(partial(self._on_persisted, holding))
            case actions.ReportEvidence(identity, location):
                evidence = Evidence(self._node, *identity, *Digests(self._files.data(location)).comparison())
                later.append(partial(self._on_evidence, evidence))
            case actions.ReportUnrestored(refusals):
                later.append(partial(self._on_unrestored, refusals))
            case actions.ReportProgress(ticket):
                self._waiting[ticket][1]()
            case actions.Warn(text):
                _log.warning("%s", text)
            case actions.FetchShard(ticket=ticket) if ticket is not None:
                self._threads.start(action, self._waiting[ticket][1])
            case _:
                self._threads.start(action, _ignore_progress)
        return None

    def _run_clock(self) -> None:
        """Send a Tick at each deadline."""
        while True:
            with self._lock:
                self._deadline = self._core.next_deadline()
                remaining_s = None if self._deadline is None else self._deadline - time.monotonic()
                if not self._closed and (remaining_s is None or remaining_s > 0):
                    self._earlier_deadline.wait(remaining_s)
                if self._closed:
                    return
                due = self._deadline is not None and self._deadline <= time.monotonic()
            if due:
                self._feed(events.Tick())

    # Answers in the words of the protocol

    def _translate(self, reply: actions.Reply) -> object:
        match reply:
            case actions.SlotGrant(location, waited_s):
                offset = self._files[location.segment].slot_offset(location.slot)
                return worker_link.Slot(location.slot, offset, waited_s)
            case actions.Location():
                return self._files.data(reply)
            case actions.StartState():
                return self._describe_start(reply)
            case int():
                file = self._files[reply]
                copies = self._core.segments.copy_slots
                return worker_link.Segment(str(file.path), file.slots, file.capacity, self._overhead, copies)
        return reply

    def _memory_range(self, location: actions.Location) -> MemoryRange:
        file = self._files[location.segment]
        return MemoryRange(str(file.path), file.slot_offset(location.slot), location.size)

    def _describe_start(self, state: actions.StartState) -> worker_link.Fetched:
        place, credentials = (state.round, state.iteration), (self._credentials.token, self._credentials.authority)
        if state.location is not None:
            tier = (Tier.STORE if state.source.key else Tier.PEER) if state.source else Tier.MEMORY
            came_from = tier, describe(state.source) if state.source else tier.value
            where = self._memory_range(state.location)
            return worker_link.Fetched(*where, *place, state.digest, *came_from, state.shards, *credentials, state.why)
        if state.iteration:
            source = f"{state.shards[0].shards} shards"
            return worker_link.Fetched("", 0, 0, *place, "", Tier.SHARDS, source, state.shards, *credentials)
        return worker_link.Fetched("", 0, 0, 0, 0, "", None)


def _key(job: str, identity: Identity, digest: str) -> str:
    return shard_key(job, identity.round, identity.iteration, identity.shard, digest)
