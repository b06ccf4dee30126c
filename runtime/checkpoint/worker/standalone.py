"""Checkpoints of a script that no agent started (`python`, `torchrun`): staged and persisted by the process itself.

Objects and manifest are those of an elastic job, so every reader reads both. A single process copies each state into a
slot of shared memory, where the next process finds the newest one if this one is killed. When it is time, a thread
writes it to the store. Several ranks copy a state only then, into a buffer of their own. A state that is the same on
every rank is written by one rank. Of a sharded state each rank writes its own shard, and any rank that finds all shards
there commits. The ranks exchange only a few numbers, when the checkpointer is made and when it loads: all start from
one checkpoint, or all fail.
"""

import sys
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from msgspec.structs import replace

from everstep.runtime import faults
from everstep.runtime.checkpoint.errors import DamagedError, RestoreError, SegmentError, UnreachableError
from everstep.runtime.checkpoint.shard.copy_to_slot import Stager
from everstep.runtime.checkpoint.shard.digests import seal
from everstep.runtime.checkpoint.shard.fetch import read, read_bytes
from everstep.runtime.checkpoint.shard.layout import json_bytes, plan_layout, state_capacity
from everstep.runtime.checkpoint.shard.reshard import Sources, read_head
from everstep.runtime.checkpoint.shard.segment import SlotRecord
from everstep.runtime.checkpoint.state.flatten import FlatState
from everstep.runtime.checkpoint.stored.keys import (
    CheckpointId,
    checkpoint_folder,
    checkpoints_prefix,
    group_by_checkpoint,
    manifest_key,
    parse_folder,
    shard_key,
)
from everstep.runtime.checkpoint.stored.manifest import encode_manifest, make_commit, read_commit
from everstep.runtime.checkpoint.stored.read_committed import sources_in
from everstep.runtime.checkpoint.stored.retention import RetentionPolicy, delete_checkpoints, keys_to_delete
from everstep.runtime.checkpoint.worker.agreement import broadcast_from_rank_0, max_over_ranks
from everstep.runtime.checkpoint.worker.own_slots import OwnSlots
from everstep.runtime.job.spec import KEEP_LAST
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.holdings import Flaw, Holding
from everstep.runtime.store import NoSuchKey, Store, StoreError

T = TypeVar("T")

Agree = Callable[[Callable[[], tuple[int, int]], torch.device], tuple[int, int]]
"""The signature of `agreement.broadcast_from_rank_0`."""
_LOADED, _PASSED, _UNFIT = 0.0, 1.0, 2.0
"""A rank's verdict on a checkpoint; the worst verdict decides."""
EVERY_S = 60.0
SHARDED_INTERVAL = 50
"""Iterations between two checkpoints of a sharded state. All ranks count iterations alike; clocks differ."""
COMMIT_TIMEOUT_S = 600.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Collectives:
    """How the ranks of a sharded state agree. Every rank must call them."""

    agree: Agree = broadcast_from_rank_0
    largest: Callable[[float, torch.device], float] = max_over_ranks


class StandaloneKeeper:
    """Keeps the checkpoints of `job` in `store`. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        job: str,
        every_s: float = EVERY_S,
        keep_last: int = KEEP_LAST,
        slots: OwnSlots | None = None,
        interval: int = 0,
        collectives: Collectives = Collectives(),
    ) -> None:
        """A state that is the same on every rank is written every `every_s` seconds, or every `interval` iterations,
        and on request. The newest `keep_last` checkpoints stay (0: all), and so does the one that this process started
        from. `slots` keep every state of a single process."""
        self.store, self.prefix = store, checkpoints_prefix(job)
        self._job, self._every_s, self._interval, self._slots = job, every_s, interval, slots
        self.device = torch.device("cpu")
        """Of the state, as far as it is known: the ranks may have to agree there."""
        self._rank, self._world_size = 0, 1
        self._agree, self._largest = collectives.agree, collectives.largest
        self._round = 0
        """Claimed with the first checkpoint; for a sharded state at once, by rank 0."""
        self._due = time.monotonic() + every_s
        self._saved: set[int] = set()
        self._policy = RetentionPolicy(keep_last)
        self._stager: Stager | None = None
        self._buffer = memoryview(b"")
        """Of the newest state, if it is not in a slot."""
        self._busy: int | None = None
        """The slot that is being written to the store."""
        self._staged = 0
        """The newest iteration in a slot."""
        self._thread = ThreadPoolExecutor(1, "everstep-persist")
        self._writing: Future[None] | None = None

    def join(self, rank: int, world_size: int) -> None:
        """Declare that the state is sharded over `world_size` ranks, each of which calls this. Their checkpoints belong
        to a round that no other run of the job has, not even an abandoned run that still writes. Raises StoreError,
        UnreachableError."""
        self._rank, self._world_size = rank, world_size
        self._round, _ = self._agree(lambda: (self._claim_round(), 0), self.device)

    def restore(self, load: Callable[[Sources], T]) -> T | None:
        """Return `load` of the newest committed checkpoint that every rank can read, however it was sharded; None if
        there is none. A damaged checkpoint is passed over with a message. Every rank must call it.

        Raises on all ranks alike: StoreError; RestoreError if the state is of another kind; UnreachableError if some
        checkpoint may be whole but none could be read.
        """
        if (restored_value := self._restore_from_slot(load)) is not None:
            return restored_value
        places_passed: dict[CheckpointId, RestoreError | None] = {}
        while (place := self._agree(lambda: self._newest_committed(places_passed), self.device)) != (0, 0):
            folder = checkpoint_folder(self._job, place)
            restored_value, error = self._try_load(folder, load)
            verdict = self._largest(_verdict(error), self.device)
            if verdict == _LOADED:
                self._policy = self._policy._replace(started_from=place)
                return restored_value
            if verdict == _UNFIT:
                raise error or RestoreError(f"{folder}: another rank cannot load it; see its error")
            places_passed[place] = error
            self._policy = self._policy._replace(passed_over=frozenset(places_passed))
            if error is not None:
                print(f"everstep: {folder} is skipped: {error}", file=sys.stderr)
        unread = [error for error in places_passed.values() if error and error.flaw is not Flaw.DAMAGED]
        if self._largest(float(bool(unread)), self.device):
            why = str(unread[0]) if unread else "another rank could not read one"
            raise UnreachableError(f"no checkpoint below {self.prefix} can be read, though some may be complete: {why}")
        return None

    def _restore_from_slot(self, load: Callable[[Sources], T]) -> T | None:
        """The state that a killed process of this job has left, if it is newer than what the store has. A store that
        does not know its round is another one, or was emptied: then training starts from the beginning."""
        record, data = (self._slots.newest() if self._slots else None) or (SlotRecord(), memoryview(b""))
        if not record.size or (record.round, record.iteration) <= self._newest_committed(()):
            return None
        if not any(True for _ in self.store.list(self._round_key(record.round))):
            return None
        source = Holding(record.round, record.iteration, size=record.size)
        try:
            seal(data)
            restored_value = load(Sources((source,), partial(read_bytes, data)))
        except RestoreError as error:
            if error.flaw is None:
                raise
            print(f"everstep: iteration {record.iteration} in memory is skipped: {error}", file=sys.stderr)
            return None
        print(
            f"everstep: continues from iteration {record.iteration}, which an earlier process left in memory",
            file=sys.stderr,
        )
        return restored_value

    def _try_load(self, folder: str, load: Callable[[Sources], T]) -> tuple[T | None, RestoreError | None]:
        """The result of `load`, or the error."""
        try:
            return load(sources_in(self.store, folder, read_commit(self.store, folder))), None
        except NoSuchKey:
            return None, DamagedError("its manifest is gone")
        except StoreError as error:
            return None, UnreachableError(str(error))
        except RestoreError as error:
            return None, error

    def save(self, iteration: int, tree: FlatState, persist: bool = False) -> None:
        """Stage the state; if it is time, write it to the store in the background. First waits for the write before,
        and raises its StoreError."""
        due = iteration not in self._saved and (persist or self._is_due(iteration))
        if not due and (self._slots is None or iteration == self._staged):
            return
        if due:
            self._wait()
        self._round = self._round or self._claim_round()
        text = json_bytes({"iteration": iteration, "state": tree.json})
        stager = self._stager
        if stager is None or not stager.fits(tree) or len(text) > stager.layout.state.size:
            stager = self._stager = Stager(plan_layout(tree.tensors, state_capacity(text), tree.parts()), tree)
            self._buffer = memoryview(b"")
        slot, data = self._stage(iteration, stager, tree, text)
        if due:
            self._saved.add(iteration)
            self._busy = slot
            self._writing = self._thread.submit(self._put, iteration, data)

    def _stage(self, iteration: int, stager: Stager, tree: FlatState, text: bytes) -> tuple[int | None, memoryview]:
        """The state's slot, if it has one, and its bytes."""
        size, slot = stager.layout.size, None
        if self._slots is not None:
            writing = self._writing is not None and not self._writing.done()
            try:
                slot, data = self._slots.begin(size, self._busy if writing else None)
            except SegmentError as error:
                print(f"everstep: states are kept in the store only: {error}", file=sys.stderr)
                self._slots = None
        if self._slots is None:
            self._buffer = data = self._buffer or memoryview(bytearray(size))
        stager.stage(slot or 0, data, tree, text, iteration)
        if slot is not None and self._slots is not None:
            self._slots.end(slot, SlotRecord(self._round, iteration, size))
            self._staged = iteration
        return slot, data[:size]

    def close(self) -> None:
        """The process ends: have its newest state in the store, and free the shared memory."""
        if self._slots is None:
            return
        try:
            self._wait()
            newest = self._slots.newest()
            if newest and self._staged and self._staged not in self._saved:
                self._put(self._staged, newest[1])
            if self._staged:
                self._slots.remove()
        except (StoreError, OSError, RuntimeError) as error:
            print(
                f"everstep: iteration {self._staged} stays in memory; start the script again: {error}", file=sys.stderr
            )
        self._slots.close()

    def flush(self, iteration: int) -> str:
        """Wait until `iteration`, which was saved before, is committed. Returns the key of the manifest. Raises
        StoreError."""
        if iteration not in self._saved:
            raise StoreError(f"iteration {iteration} was not saved: save it with persist=True before it is flushed")
        self._wait()
        deadline = time.monotonic() + COMMIT_TIMEOUT_S
        while missing := self._commit(iteration):
            if time.monotonic() > deadline:
                raise StoreError(f"iteration {iteration} is not committed: {missing[0]} was not written")
            time.sleep(_POLL_S)
        return self._manifest_key(iteration)

    def _is_due(self, iteration: int) -> bool:
        if self._world_size > 1 or self._interval:
            return iteration % (self._interval or SHARDED_INTERVAL) == 0
        return time.monotonic() >= self._due and (self._writing is None or self._writing.done())

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _put(self, iteration: int, data: memoryview) -> None:
        seal(data)
        faults.point("alone.before_put", iteration=iteration)
        try:
            self.store.put(self._shard_key(iteration, self._rank), data)
        except OSError:
            self._saved.discard(iteration)  # It may be saved again.
            raise
        faults.point("alone.after_put", iteration=iteration)
        self._commit(iteration)
        self._due = time.monotonic() + self._every_s

    def _commit(self, iteration: int) -> list[str]:
        """Commit the checkpoint if it is complete. Returns the keys of missing objects."""
        manifest = self._manifest_key(iteration)
        sizes = {entry.key: entry.size for entry in self.store.list(manifest.rpartition("/")[0] + "/")}
        keys = [self._shard_key(iteration, rank) for rank in range(self._world_size)]
        missing = [key for key in keys if key not in sizes]
        if missing or manifest in sizes:
            return missing
        shards = []
        for rank, key in enumerate(keys):
            source = Holding(self._round, iteration, rank, self._world_size, sizes[key], key=key)
            layout, digests = read_head(source, partial(read, store=self.store, credentials=Credentials("")))
            if layout.size != sizes[key]:
                raise StoreError(f"{key}: it has {sizes[key]} bytes, but its header says {layout.size}")
            shards.append(replace(source, digest=digests.head_digest()))
        faults.point("alone.before_manifest", iteration=iteration)
        is_created = self.store.create(manifest, encode_manifest(make_commit(self._job, self._world_size, shards)))
        faults.point("alone.after_manifest", iteration=iteration)
        if is_created and self._policy.last:
            self._delete_surplus()
        return []

    def _delete_surplus(self) -> None:
        """The rank that committed deletes surplus checkpoints. If that fails, it is retried after the next commit."""
        try:
            delete_checkpoints(self.store, keys_to_delete(self.store, self._job, self._policy))
        except StoreError as error:
            print(f"everstep: old checkpoints stay until the next one: {error}", file=sys.stderr)

    def _shard_key(self, iteration: int, rank: int) -> str:
        return shard_key(self._job, self._round, iteration, rank)

    def _manifest_key(self, iteration: int) -> str:
        return manifest_key(self._job, (self._round, iteration))

    def _claim_round(self) -> int:
        """Claim a round that no run has used or will use. So the debris of another run is never completed."""
        round_ = 1 + max((place[0] for place, _ in self._checkpoints()), default=0)
        while not self.store.create(self._round_key(round_), b"claimed"):
            round_ += 1
        if self._slots:
            self._slots.forget(round_)
        return round_

    def _round_key(self, round_: int) -> str:
        return f"jobs/{self._job}/rounds/{round_:06d}"

    def _newest_committed(self, places_passed: Collection[CheckpointId]) -> CheckpointId:
        return max(
            (place for place, whole in self._checkpoints() if whole and place not in places_passed), default=(0, 0)
        )

    def _checkpoints(self) -> Iterator[tuple[CheckpointId, bool]]:
        """Each (round, iteration) with any object, and whether it is committed."""
        for key, folder in group_by_checkpoint(self.store.list(self.prefix)).items():
            if place := parse_folder(key):
                yield place, folder.committed


def _verdict(error: RestoreError | None) -> float:
    return _LOADED if error is None else _UNFIT if error.flaw is None else _PASSED
