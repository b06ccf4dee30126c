"""The desk: events go to the brain, its records to the journal, and the state becomes visible once they are durable.

Whoever acts (server, reconcile loop, progress) reads `Desk.state`, which never runs ahead of the journal. Records
that arrive while a segment is being written share the next one (group commit).
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable

from runtime import faults
from runtime.job.brain import Brain, Journal, WriteManifest
from runtime.job.events import Event, ManifestWritten, Tick
from runtime.job.records import Record
from runtime.job.spec import JobSpec
from runtime.job.state import State
from runtime.master import journal as journals
from runtime.master import manifest
from runtime.store import Store


class Clock:
    """Unix time that neither jumps nor runs behind the journal: wall time at the start, then monotonic."""

    def __init__(self, at_least: float) -> None:
        self._offset = max(time.time(), at_least) - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self._offset


class Desk:
    """One master's brain and journal on an event loop."""

    def __init__(self, spec: JobSpec, store: Store, journal: journals.Journal, state: State) -> None:
        self.spec = spec
        self.store = store
        self.clock = Clock(state.time)
        self.state = state
        """The state that is durable: what may be acted on."""
        self.brain = Brain(spec, state, self.clock())
        self.changed = asyncio.Event()
        """Set on every change of `state`; cleared by the reconcile loop."""
        self.on_state: list[Callable[[State], None]] = []
        self._journal = journal
        self._batch: list[Record] = []
        self._waiters: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._decided = self._written = 0
        self._durable: list[tuple[int, asyncio.Future[None]]] = []
        self._full = asyncio.Event()
        self._sooner = asyncio.Event()
        self._commits: asyncio.Queue[WriteManifest] = asyncio.Queue()

    def feed(self, event: Event) -> None:
        """Give the brain an event. What follows shows in `state` as soon as it is journaled. Raises Refused."""
        before = self.brain.next_deadline()
        for decision in self.brain.handle(event, self.clock()):
            match decision:
                case Journal(record):
                    self._batch.append(record)
                    self._decided += 1
                    self._full.set()
                case WriteManifest():
                    self._commits.put_nowait(decision)
        if self.brain.next_deadline() != before:
            self._sooner.set()

    async def durable(self) -> None:
        """Until everything decided so far is in the journal."""
        if self._written < self._decided:
            future = asyncio.get_running_loop().create_future()
            self._durable.append((self._decided, future))
            await future

    async def until(self, key: str, ready: Callable[[State], bool], seconds: float) -> bool:
        """Until `ready`, looked at whenever the node or checkpoint `key` changes; False when the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not ready(self.state):
            future = loop.create_future()
            self._waiters[key].add(future)
            try:
                async with asyncio.timeout_at(deadline):
                    await future
            except TimeoutError:
                return ready(self.state)
            finally:
                self._waiters[key].discard(future)
        return True

    async def write(self) -> None:
        """Journal what is decided, until cancelled. Raises Fenced, StoreError."""
        while True:
            await self._full.wait()
            self._full.clear()
            batch, self._batch, state = self._batch, [], self.brain.state
            if not batch:
                continue
            await asyncio.to_thread(self._journal.append, batch)
            faults.point("master.after_journal", records=len(batch))
            self._written += len(batch)
            self._publish(state)
            due = [future for count, future in self._durable if count <= self._written]
            self._durable = [(count, future) for count, future in self._durable if count > self._written]
            for future in due:
                if not future.done():
                    future.set_result(None)

    def _publish(self, state: State) -> None:
        before, self.state = self.state, state
        changed = [name for name, node in state.nodes.items() if before.nodes.get(name) is not node]
        if state.checkpoints is not before.checkpoints:
            changed += [manifest.checkpoint_key(self.spec.job, *key) for key in state.checkpoints]
        for key in changed:
            for future in self._waiters.pop(key, ()):
                if not future.done():
                    future.set_result(None)
        self.changed.set()
        for listener in self.on_state:
            listener(state)

    async def tick(self) -> None:
        """Tell the brain when its deadlines have come, until cancelled."""
        while True:
            self._sooner.clear()
            deadline = self.brain.next_deadline()
            try:
                async with asyncio.timeout(None if deadline is None else max(0.0, deadline - self.clock())):
                    await self._sooner.wait()
            except TimeoutError:
                self.feed(Tick())
                self.changed.set()

    async def commit(self) -> None:
        """Make whole checkpoints visible, until cancelled. Raises StoreError."""
        while True:
            asked = await self._commits.get()
            key = await asyncio.to_thread(manifest.commit, self.store, self.spec.job, asked)
            self.feed(ManifestWritten(asked.round, asked.iteration, key))
