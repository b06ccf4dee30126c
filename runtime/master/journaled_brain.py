"""The brain with its journal: events go to the brain, its records to the journal, then the new state becomes visible.

Server, reconcile loop, progress and commits act only on durable state. Invariant: `JournaledBrain.state` never runs
ahead of the journal. Records that arrive while a segment is being written share the next one (group commit).
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial

from everstep.runtime import faults
from everstep.runtime.checkpoint.stored.keys import checkpoint_folder, checkpoints_prefix
from everstep.runtime.checkpoint.stored.retention import RetentionPolicy, delete_checkpoints, keys_to_delete
from everstep.runtime.job.brain import Brain, Refused, WriteManifest, WriteRecord
from everstep.runtime.job.certification import NO_REPLICA
from everstep.runtime.job.data_queues import waiting_key
from everstep.runtime.job.events import DeletionDue, Event, ManifestWritten, RestoreFailed, Tick
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.records import (
    JobEnded,
    JobReopened,
    NodeLost,
    NodeReleased,
    NodeRequested,
    Record,
    StateCertified,
)
from everstep.runtime.job.spec import JobSpec
from everstep.runtime.job.state import State, restore_point, round_number
from everstep.runtime.journal import journal as journals
from everstep.runtime.journal import segments, snapshots
from everstep.runtime.master import manifest
from everstep.runtime.master.retry import retry
from everstep.runtime.master.survey import survey_store
from everstep.runtime.protocol.messages import Unrestored
from everstep.runtime.store import Store, StoreError

EVIDENCE = "evidence"
"""What waits for a state to be certified, or for the end of its round; no node has this name and job's folder."""
CONFIRM_S = 5.0
"""Interval at which a master confirms that no other master has taken over."""
LINGER_S = 0.02
"""How long the next segment waits for more records after a large one (thousands of nodes join)."""
LARGE_BATCH = 16
"""Records that make a segment a large one."""

_NODE_CHANGES = (NodeRequested, NodeReleased, NodeLost, JobEnded, JobReopened)
"""Records that may change which nodes the platform must run."""

_log = logging.getLogger(__name__)


class Clock:
    """Unix time that never jumps and is never before the journal's last record: wall time at the start, then
    monotonic."""

    def __init__(self, at_least: float) -> None:
        self._offset = max(time.time(), at_least) - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self._offset


class JournaledBrain:
    """One master's brain and journal on an event loop."""

    def __init__(
        self,
        spec: JobSpec,
        store: Store,
        journal: journals.Journal,
        state: State,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.spec = spec
        self.store = store
        self.clock = clock or Clock(state.time)
        self.state = state
        """The durable state: the one to act on."""
        self.core = Brain(spec, state, self.clock())
        self.changed = asyncio.Event()
        """Set when the desired nodes may have changed; cleared by the reconcile loop."""
        self.on_state: list[Callable[[State], None]] = []
        self._journal = journal
        self._batch: list[Record] = []
        self._crowd: list[tuple[Event, asyncio.Future[None]]] = []
        """Events of this pass of the loop."""
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._decided = self._written = 0
        self._durability_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._manifests: deque[tuple[int, WriteManifest]] = deque()
        self._has_decisions = asyncio.Event()
        self._deadline_moved = asyncio.Event()
        self._alarm: float | None = None
        self._commits: asyncio.Queue[WriteManifest] = asyncio.Queue()
        self._deleting = asyncio.Lock()
        self._surveying = asyncio.Lock()
        self._sweep_failed = False
        self._is_uncompared_told = False
        self._segments, self._records = journal.replayed
        self._last_segment = 0
        self._snapshot_due = asyncio.Event()
        self._brain_failed = asyncio.Event()

    def feed(self, event: Event) -> None:
        """Give the brain an event. Its effects show in `state` once they are journaled. Raises Refused."""
        for refusal in self._feed_all([event]).values():
            raise refusal

    def feed_soon(self, event: Event) -> asyncio.Future[None]:
        """As `feed`, together with all events that come in the same pass of the loop, as from ten thousand survivors
        that join again. The future is done when the brain has them; it has the Refused."""
        future = asyncio.get_running_loop().create_future()
        if not self._crowd:
            asyncio.get_running_loop().call_soon(self._feed_crowd)
        self._crowd.append((event, future))
        return future

    def _feed_crowd(self) -> None:
        crowd, self._crowd = self._crowd, []
        try:
            refusals = self._feed_all([event for event, _ in crowd])
        except Exception as error:  # noqa: BLE001 - whoever waits reports it; `wait_for_brain_failure` ends the master
            refusals = dict.fromkeys(range(len(crowd)), error)
        for place, (_, future) in enumerate(crowd):
            if future.done():
                continue  # Its request was cancelled.
            if place in refusals:
                future.set_exception(refusals[place])
            else:
                future.set_result(None)

    def _feed_all(self, events: Sequence[Event]) -> Mapping[int, Exception]:
        """Why some are refused, by their places."""
        decisions, refusals = self._decide(events)
        for decision in decisions:
            match decision:
                case WriteRecord(record):
                    self._batch.append(record)
                    self._decided += 1
                case WriteManifest():
                    self._manifests.append((self._decided, decision))
        if self._batch or self._manifests:
            self._has_decisions.set()
        deadline = self.core.next_deadline()
        if deadline is not None and (self._alarm is None or deadline < self._alarm):
            self._deadline_moved.set()
        return refusals

    def _decide(self, events: Sequence[Event]) -> tuple[list[WriteRecord | WriteManifest], Mapping[int, Refused]]:
        try:
            return self.core.handle_together(events, self.clock())
        except BaseException:
            self._brain_failed.set()
            raise

    async def wait_for_brain_failure(self) -> None:
        """Wait until the brain fails. Its state may then differ from the journal, so this master must not go on.

        Raises RuntimeError. The caller of `feed` has reported why.
        """
        await self._brain_failed.wait()
        raise RuntimeError(f"job {self.spec.job}: the brain failed on an event; the next master replays the journal")

    async def wait_until_durable(self) -> None:
        """Wait until everything decided so far is in the journal."""
        if self._written < self._decided:
            future = asyncio.get_running_loop().create_future()
            self._durability_waiters.append((self._decided, future))
            await future

    async def wait_until(self, key: str, ready: Callable[[State], bool], seconds: float) -> bool:
        """Wait until `ready(state)`, evaluated whenever the node or checkpoint `key` changes; False after `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not ready(self.state):
            future = loop.create_future()
            waiters = self._waiters.setdefault(key, set())
            waiters.add(future)
            alarm = loop.call_at(deadline, _wake, future)
            try:
                await future
            finally:
                alarm.cancel()
                waiters.discard(future)
                if not waiters and self._waiters.get(key) is waiters:
                    del self._waiters[key]
            if loop.time() >= deadline:
                return ready(self.state)
        return True

    async def write_journal(self) -> None:
        """Journal decisions until cancelled. Raises Fenced; StoreError if the store fails for minutes."""
        many = False
        while True:
            await self._has_decisions.wait()
            if many:
                await asyncio.sleep(LINGER_S)
            self._has_decisions.clear()
            batch, self._batch, state = self._batch, [], self.core.state
            many = len(batch) >= LARGE_BATCH
            if batch:
                draft = self._journal.draft(batch)
                await retry(f"segment {draft.number} of the journal", partial(self._journal.write, draft))
                faults.point("master.after_journal", records=len(batch))
                self._written += len(batch)
                self._publish(state, batch)
                self._count_replay(draft.number, len(batch))
            self._release_waiting()

    def _count_replay(self, segment: int, records: int) -> None:
        self._last_segment, self._segments, self._records = segment, self._segments + 1, self._records + records
        if snapshots.is_due(self._segments, self._records, self.state):
            self._snapshot_due.set()

    async def write_snapshots(self) -> None:
        """Write a snapshot whenever a replay would take long, and archive older segments, until cancelled."""
        while True:
            await self._snapshot_due.wait()
            self._snapshot_due.clear()
            self._segments = self._records = 0
            number, state = self._last_segment, self.state
            try:
                await asyncio.to_thread(snapshots.write, self.store, self.spec.job, number, state)
                await asyncio.to_thread(segments.archive, self.store, self.spec.job, number)
            except StoreError as error:
                _log.warning("no snapshot was written; a replay takes longer until the next one: %s", error)

    def _publish(self, state: State, records: list[Record]) -> None:
        before, self.state = self.state, state
        changed_names = state.nodes.changed_names(before.nodes)
        if state.checkpoints is not before.checkpoints:
            places = {*before.checkpoints, *state.checkpoints}
            changed_names += [checkpoint_folder(self.spec.job, place) for place in places]
        if state.certified != before.certified or state.phase is not before.phase:
            changed_names.append(EVIDENCE)
        if state.queues is not before.queues:
            changed_names += [
                waiting_key(name) for name in state.queues if state.queues[name] is not before.queues.get(name)
            ]
        for key in changed_names:
            for future in self._waiters.pop(key, ()):
                _wake(future)
        if any(isinstance(record, _NODE_CHANGES) for record in records):
            self.changed.set()
        if any(isinstance(record, StateCertified) and record.detail == NO_REPLICA for record in records):
            self._tell_uncompared()
        for listener in self.on_state:
            listener(state)

    def _tell_uncompared(self) -> None:
        """Say once what certified states of this job are worth."""
        if self._is_uncompared_told:
            return
        self._is_uncompared_told = True
        _log.warning(
            "states are certified by %s only: no node has a replica of another's state to compare it with, "
            "so a flipped bit in one does not show",
            "norms, loss and replays" if self.spec.certify_replay else "norms and loss",
        )

    def _release_waiting(self) -> None:
        """Release what waited for records that are durable now."""
        while self._durability_waiters and self._durability_waiters[0][0] <= self._written:
            _wake(self._durability_waiters.popleft()[1])
        while self._manifests and self._manifests[0][0] <= self._written:
            self._commits.put_nowait(self._manifests.popleft()[1])

    async def send_ticks(self) -> None:
        """Send a Tick at each deadline of the brain, until cancelled."""
        while True:
            self._deadline_moved.clear()
            self._alarm = deadline = self.core.next_deadline()
            try:
                async with asyncio.timeout(None if deadline is None else max(0.0, deadline - self.clock())):
                    await self._deadline_moved.wait()
            except TimeoutError:
                due = self.core.next_deadline()
                if due is not None and due <= self.clock():
                    self.feed(Tick())
                    self.changed.set()

    async def commit_checkpoints(self) -> None:
        """Commit complete checkpoints until cancelled. Raises StoreError if the store fails for minutes."""
        while True:
            request = await self._commits.get()
            if key := await self._commit(request):
                self.feed(ManifestWritten(request.round, request.iteration, key))
            if self.spec.keep_last and self._commits.empty():
                # A checkpoint deleted before its commit is journaled would be committed again by the next master.
                await self.wait_until_durable()
                await self.delete_unneeded(self.spec.keep_last, self.spec.keep_every)

    def _is_overtaken(self, request: WriteManifest) -> bool:
        """Whether a newer checkpoint is complete in the store, so that this one may be deleted."""
        place = request.round, request.iteration
        return any(
            newer > place and checkpoint.shards.is_complete for newer, checkpoint in self.state.checkpoints.items()
        )

    async def _commit(self, request: WriteManifest) -> str:
        """Write the manifest, return its key; "" if an object of the checkpoint was deleted before all were there."""
        what = f"the manifest of iteration {request.iteration}"
        commit = partial(manifest.write_manifest, self.store, self.spec.job, request)
        if not self._is_overtaken(request):
            return await retry(what, commit)
        async with self._deleting:
            missing = await retry(what, partial(manifest.missing_shards, self.store, request))
            if not missing:
                return await retry(what, commit)
        _log.warning(
            "iteration %d is not committed: %s was deleted, there is a newer checkpoint", request.iteration, missing[0]
        )
        return ""

    async def report_unrestored(self, report: Unrestored) -> None:
        """A node could not restore: survey the store for other checkpoints, then tell the brain. Only the first report
        of a round counts."""
        async with self._surveying:
            if report.round == round_number(self.core.state) and self.core.state.phase is JobPhase.RUNNING:
                look = partial(survey_store, self.store, self.spec.job, self.core.state)
                survey = await retry("the survey of the checkpoints", look)
                self.feed(RestoreFailed(report, survey))

    async def delete_unneeded(self, last: int = 0, every: int = 0) -> None:
        """Delete checkpoints beyond retention (see `RetentionPolicy`), debris, and what killed writers left.

        What cannot be deleted now is retried the next time.

        Invariant: the journal forgets a checkpoint before it is deleted, so no round of any master restores from it.
        """
        passed_over = frozenset(
            (refusal.round, refusal.iteration) for refusal in self.state.refused if not refusal.node
        )
        policy = RetentionPolicy(last, every, restore_point(self.state), passed_over)
        async with self._deleting:
            try:
                unneeded = await asyncio.to_thread(keys_to_delete, self.store, self.spec.job, policy)
                self.feed(DeletionDue(tuple(unneeded)))
                await self.wait_until_durable()
                free = {place: keys for place, keys in unneeded.items() if place not in self.state.checkpoints}
                await asyncio.to_thread(delete_checkpoints, self.store, free)
            except StoreError as error:
                _log.warning("old checkpoints and debris are not deleted before the next commit: %s", error)
            await self._sweep()

    async def _sweep(self) -> None:
        """Delete what killed writers left. A store that does not allow this is warned about once."""
        try:
            await asyncio.to_thread(lambda: list(self.store.sweep(checkpoints_prefix(self.spec.job))))
        except StoreError as error:
            if not self._sweep_failed:
                _log.warning("what killed writers left in the store was not deleted: %s", error)
            self._sweep_failed = True

    async def confirm_ownership(self) -> None:
        """Confirm that this master still owns the job. Raises Fenced if another has taken it over."""
        await retry("the journal's end", self._journal.confirm)

    @property
    def background_parts(self) -> Sequence[Callable[[], Coroutine[None, None, None]]]:
        """The tasks that must run all the time. An exception in any of them ends this master."""
        return (
            self.write_journal,
            self.send_ticks,
            self.commit_checkpoints,
            self.write_snapshots,
            self.confirm_periodically,
            self.wait_for_brain_failure,
        )

    async def confirm_periodically(self) -> None:
        """Confirm ownership periodically until cancelled: a master that was suspended must end even if it has nothing
        to write."""
        while True:
            await asyncio.sleep(CONFIRM_S)
            await self.confirm_ownership()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
