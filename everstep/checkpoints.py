"""Where this worker's checkpoints are kept, and the Checkpointer that a script uses."""

import atexit
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.runtime.checkpoint.errors import SegmentError
from everstep.runtime.checkpoint.shard.reshard import Shard, open_shards, verify_shards
from everstep.runtime.checkpoint.stored.keys import checkpoints_prefix
from everstep.runtime.checkpoint.worker import checkpointer as worker
from everstep.runtime.checkpoint.worker.own_slots import OwnSlots, remove_abandoned, slots_folder
from everstep.runtime.checkpoint.worker.standalone import EVERY_S, StandaloneKeeper
from everstep.runtime.job.spec import KEEP_LAST
from everstep.runtime.protocol.worker_link import Fetch, Fetched
from everstep.runtime.store import Store, StoreError, open_store
from everstep.runtime.watch import in_worker
from everstep.runtime.watch.board_fields import FETCH, FLUSH
from everstep.session import current, current_or_first, is_aborted

RESTORE = "restore"
_ZERO = {"EVERSTEP_KEEP_LAST": "keeps all checkpoints", "EVERSTEP_PERSIST_INTERVAL": "writes one every minute"}


class Checkpoints:
    """Where this worker's checkpoints are kept: by its node's agent, or in a store that it writes itself."""

    def __init__(self, directory: str = "") -> None:
        """Without an agent: the store `directory`, else EVERSTEP_STORE. Raises LinkError, StoreError.

        A script that creates its process group itself need not call `init`.
        """
        self.session = current_or_first()
        context = self.session.context
        is_kept = context.link is not None or context.rehearses
        self.alone = None if is_kept else _standalone(directory or os.environ.get("EVERSTEP_STORE", ""))

    def shards(self) -> list[Shard]:
        """The shards that this round starts from; empty if it starts from nothing.

        A damaged checkpoint is skipped and an older one takes its place; under an agent this takes another round,
        before which this process ends.
        """
        link = self.session.context.link
        if link is None:
            return (
                (self.alone.restore(lambda sources: verify_shards(open_shards(*sources))) or []) if self.alone else []
            )
        with in_worker.doing(FETCH):
            place = link.ask(Fetch(), Fetched)
        if not place.path and not place.sources:
            return []
        with worker.report_damage(link, place):
            shards = open_shards(*worker.shard_sources(link, place))
        for shard in shards:
            shard.on_lost = link.refuse_restore
        return shards

    def beacon(self, iteration: int, phase: str) -> None:
        """Show what this worker does now, in a loop that does not use `batches`."""
        self.session.iteration = iteration
        self.session.beacon(phase)

    def report(self, iteration: int, facts: Mapping[str, float | int | str]) -> None:
        """Send that iteration's telemetry, in a loop that does not use `batches`."""
        self.session.iteration = iteration
        self.session.send(facts)

    def store_and_prefix(self) -> tuple[Store, str]:
        """The store, and the prefix of the keys of this job's checkpoints."""
        if self.alone is not None:
            return self.alone.store, self.alone.prefix
        link = self.session.context.link
        if link is None:
            raise StoreError("no agent started this script and it has no store: set EVERSTEP_STORE=DIRECTORY")
        return open_store(link.welcome.store, read_only=True), checkpoints_prefix(link.welcome.job)


class Checkpointer(worker.Checkpointer):
    """Checkpoints of `state`: `load(state)`, `save(iteration, state)`, `finish(state)`."""

    def __init__(self, state: dict[str, Any], checkpoints: Checkpoints | None = None) -> None:
        """Announce how much memory `state` needs. `checkpoints`: where they are kept; by default as `init` decided.

        Under an agent a process has one: that which it made before is closed.

        Raises StateError for a value that cannot be checkpointed (with its key path), LinkError if shared memory has no
        room for it, and RuntimeError before `everstep.init`.
        """
        if checkpoints is None:
            current("Checkpointer")
            checkpoints = Checkpoints()
        session, context = checkpoints.session, checkpoints.session.context
        session.close_checkpointer()
        ahead, session.ahead = session.ahead, None
        if context.link is not None:
            local_rank = context.link.local_rank
        else:
            local_rank = context.local_rank or context.rank * (checkpoints.alone is not None)
        super().__init__(
            state,
            keeper=context.link or checkpoints.alone,
            rank=context.rank,
            local_rank=local_rank,
            ahead=ahead,
            is_aborted=is_aborted.is_set,
        )
        session.checkpointer = self
        session.beacon("start")
        self._session = session

    def load(self, state: dict[str, Any]) -> int:
        """Restore the newest checkpoint into `state`, in place. Returns its iteration; 0 if there is none.

        Call it on every rank: all restore the same checkpoint, or all fail. A damaged checkpoint is passed over for an
        older one; under an agent, this process then ends and another round begins. Raises RestoreError if the
        checkpoint belongs to another model, or if none can be read although some may be complete; LinkError if memory
        has no room for it.
        """
        began = time.perf_counter()
        with in_worker.doing(RESTORE):
            iteration = super().load(state)
        if iteration:
            in_worker.note_restore(iteration)
            self._session.note_restore(time.perf_counter() - began)
        if self._session.loop is not None:
            self._session.loop.on_load(iteration)
        return iteration

    def save(self, iteration: int, state: dict[str, Any], persist: bool = False) -> None:
        """Stage `state` as it is after `iteration`. Training waits for one copy in memory; the agent does the rest.

        `persist=True` copies it to the store regardless of the interval. Call it on every rank. Raises StateError for a
        value that cannot be checkpointed, LinkError if the agent is gone or has no room, and without an agent
        StoreError.
        """
        self._session.end_rehearsal()
        if self._session.loop is not None:
            self._session.loop.on_save(iteration)
        super().save(iteration, state, persist)
        in_worker.note_staging(self.stall_s)
        if self._session.loop is not None:
            self._session.loop.on_saved()

    def finish(self, state: dict[str, Any]) -> str:
        """End the training: wait until the last state is committed in the store.

        Returns the manifest's key, or "" on a node that does not persist. Raises LinkError, StoreError.
        """
        self._session.end_rehearsal()
        if self._session.loop is not None:
            self._session.loop.on_finish()
        return super().finish(state)

    def flush(self, iteration: int) -> str:
        """Wait until `iteration`, which was saved before, is committed in the store. Returns the manifest's key, or ""
        on a node that does not persist. Raises LinkError or StoreError if it cannot be committed."""
        with in_worker.doing(FLUSH):
            return super().flush(iteration)


def _standalone(uri: str) -> StandaloneKeeper | None:
    if not uri:
        print(
            "everstep: no agent started this script, so its checkpoints are not kept; "
            "set EVERSTEP_STORE=DIRECTORY to keep them there",
            file=sys.stderr,
        )
        return None
    store, job = open_store(uri), os.environ.get("EVERSTEP_JOB") or f"{Path(sys.argv[0]).stem or 'script'}-alone"
    keep_last, interval = _count("EVERSTEP_KEEP_LAST", KEEP_LAST), _count("EVERSTEP_PERSIST_INTERVAL", 0)
    slots = _own_slots(store.uri, job) if os.environ.get("WORLD_SIZE", "1") == "1" else None
    often = f"every {interval} iterations" if interval else f"every {EVERY_S:.0f} s"
    print(
        f"everstep: no agent started this script; {'every save stays in memory, ' if slots else ''}"
        f"a checkpoint goes to {uri}/jobs/{job} {often} (EVERSTEP_PERSIST_INTERVAL=N: every N iterations)",
        file=sys.stderr,
    )
    keeper = StandaloneKeeper(store, job, keep_last=keep_last, slots=slots, interval=interval)
    atexit.register(keeper.close)
    return keeper


def _count(variable: str, default: int) -> int:
    """Raises StoreError."""
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal():
        raise StoreError(f"{variable}={text}: give a whole number; 0 {_ZERO[variable]}")
    return int(text)


def _own_slots(uri: str, job: str) -> OwnSlots | None:
    remove_abandoned(time.time())
    try:
        return OwnSlots(slots_folder(uri, job))
    except SegmentError as error:
        print(f"everstep: saves are not kept in memory: {error}", file=sys.stderr)
        return None
