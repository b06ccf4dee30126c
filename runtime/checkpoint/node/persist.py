"""Staged states on their way to the store: one at a time, in a thread of its own.

The interval's wishes do not queue: while one state is being put, the newest takes the place of an older one that waits,
which is counted and told. What somebody waits for (flush, persist=True) is put in any case, and pinned until then.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from everstep.runtime import faults
from everstep.runtime.checkpoint.errors import KeeperError, RestoreError
from everstep.runtime.checkpoint.node.persist_interval import Cadence
from everstep.runtime.checkpoint.node.segments import Held, Segments
from everstep.runtime.checkpoint.node.slots import Identity
from everstep.runtime.checkpoint.stored.keys import shard_key
from everstep.runtime.protocol.messages import Holding
from everstep.runtime.store import Store

KEPT_OUTCOMES = 64
"""More than anybody waits for at once."""
_log = logging.getLogger("everstep.checkpoint")


@dataclass(frozen=True)
class Outcome:
    """How it ended: the manifest's key, or why the store did not take it."""

    manifest: str = ""
    error: str = ""


@dataclass(frozen=True)
class _Job:
    held: Held
    slot: int
    identity: Identity


class Persister:
    """Shares the keeper's lock: its public methods are called holding it."""

    def __init__(
        self,
        changed: threading.Condition,
        segments: Segments,
        store: Store,
        job: str,
        on_persisted: Callable[[Holding], None],
        digest: Callable[[Held, int], str],
        cadence: Cadence,
    ) -> None:
        """`digest` of a pinned slot: called without the lock. `cadence` is told how long each copy takes."""
        self._changed, self._segments, self._store, self._job = changed, segments, store, job
        self._on_persisted, self._digest, self._cadence = on_persisted, digest, cadence
        self._asked: deque[_Job] = deque()
        self._wanted: dict[int, Identity] = {}
        self._under_way: set[Identity] = set()
        """Asked, being put, or put and not committed yet."""
        self._outcomes: dict[Identity, Outcome] = {}
        self._closed = False
        self.skipped = 0
        threading.Thread(target=self._run, name="everstep-persist", daemon=True).start()

    def begin(self, round_: int) -> None:
        """A round begins: nobody asks any more how states of rounds before the last one fared."""
        waiting = {job.identity for job in self._asked}
        self._outcomes = {known: how for known, how in self._outcomes.items() if known.round >= round_ - 1}
        self._under_way = {known for known in self._under_way if known.round >= round_ - 1 or known in waiting}

    def ask(self, local_rank: int, identity: Identity) -> None:
        """Put that state in any case. Raises KeeperError when it is not held."""
        if identity in self._under_way:
            return
        found = self._segments.find(identity, local_rank)
        if found is None:
            raise KeeperError(f"iteration {identity.iteration} is not staged: save it before it is flushed")
        found[0].table.pin(found[1])
        self._asked.append(_Job(*found, identity))
        self._under_way.add(identity)
        self._outcomes.pop(identity, None)
        self._changed.notify_all()

    def want(self, local_rank: int, identity: Identity) -> None:
        """Put that state, or a newer one if it must wait."""
        waiting = self._wanted.get(local_rank)
        if identity == waiting or identity in self._under_way or self.outcome(identity):
            return
        if waiting is not None:
            self.skipped += 1
            _log.warning(
                "iteration %d is not persisted: %d came before the store had taken an earlier one (%d so far)",
                waiting.iteration, identity.iteration, self.skipped,
            )  # fmt: skip
        self._wanted[local_rank] = identity
        self._changed.notify_all()

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

    def close(self) -> None:
        """End after the put that is going on."""
        self._closed = True

    def _run(self) -> None:
        while True:
            with self._changed:
                job = None
                while job is None:
                    self._changed.wait_for(lambda: self._closed or self._asked or self._wanted)
                    if self._closed:
                        return
                    job = self._next()
                self._cadence.persisting(time.monotonic())
            error = self._put(job)
            with self._changed:
                self._cadence.persisted(time.monotonic())
                if error:
                    self._under_way.discard(job.identity)
                    self._note(job.identity, Outcome(error=error))
                self._segments.unpin(job.held, job.slot)

    def _next(self) -> _Job | None:
        """What to put now, pinned; None when what was wanted is held no more."""
        if self._asked:
            return self._asked.popleft()
        local_rank, identity = self._wanted.popitem()
        found = self._segments.find(identity, local_rank)
        if found is None:
            newest = self._segments.newest(local_rank, identity.round)  # Another node may persist the later round.
            if not newest:
                return None
            identity = newest[0]
            found = self._segments.find(identity, local_rank)
        if found is None or self.under_way(identity):
            return None
        held, slot = found
        held.table.pin(slot)
        self._under_way.add(identity)
        return _Job(held, slot, identity)

    def _put(self, job: _Job) -> str:
        """Copy one shard to the store and tell the agent; the error's text when the store refuses or it is damaged."""
        data, identity = job.held.data(job.slot), job.identity
        key = shard_key(self._job, identity.round, identity.iteration, identity.shard)
        try:
            digest = self._digest(job.held, job.slot)
            faults.point("keeper.before_put", iteration=identity.iteration)
            self._store.put(key, data)
        except (OSError, RestoreError) as error:
            _log.warning("iteration %d is not persisted: %s", identity.iteration, error)
            return f"iteration {identity.iteration} cannot be persisted: {error}"
        faults.point("keeper.after_put", iteration=identity.iteration)
        self._on_persisted(Holding(*identity, size=len(data), key=key, digest=digest))
        return ""
