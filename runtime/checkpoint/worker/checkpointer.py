"""The worker's side: announce the state's size, stage the state after each iteration, restore it at the start."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from everstep.runtime import faults
from everstep.runtime.checkpoint.errors import (
    AbortedError,
    DamagedError,
    PassedOverError,
    RestoreError,
    SegmentError,
    StateError,
)
from everstep.runtime.checkpoint.shard.copy_to_slot import Stager
from everstep.runtime.checkpoint.shard.device_copies import DeviceCopies
from everstep.runtime.checkpoint.shard.fetch import read, read_bytes
from everstep.runtime.checkpoint.shard.layout import Layout, json_bytes, plan_layout, state_capacity
from everstep.runtime.checkpoint.shard.reshard import Sources, reshard
from everstep.runtime.checkpoint.shard.restore import has_same_parts, load_shard, open_local_shard
from everstep.runtime.checkpoint.shard.segment import Beacon, SegmentFile
from everstep.runtime.checkpoint.state.flatten import FlatState, Flattener, prepare_state
from everstep.runtime.checkpoint.state.traversal import pause_gc
from everstep.runtime.checkpoint.worker.agreement import max_over_ranks, world_size
from everstep.runtime.checkpoint.worker.overlapped_saves import NOT_KEPT, OverlappedSaves, copies_from, device_of
from everstep.runtime.checkpoint.worker.staging_interval import StagingInterval
from everstep.runtime.checkpoint.worker.standalone import StandaloneKeeper
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.holdings import Holding, Refusal
from everstep.runtime.protocol.worker_link import (
    Acquire,
    Announce,
    Done,
    Fetch,
    Fetched,
    Flush,
    Link,
    LinkError,
    Segment,
    Slot,
    Staged,
)
from everstep.runtime.store import open_store
from everstep.runtime.watch import in_worker
from everstep.runtime.watch.board_fields import FETCH, MEMORY


class RankState(dict[str, Any]):
    """A state of one rank's own: every rank stages it even if no tensor is sharded.

    A key path that several ranks have stands for the same value on each. Such a state is read shard by shard, not by
    `load`.
    """


class Checkpointer:
    """Saves and loads one state: a dict of modules, optimizers, tensors, numbers, strings, objects with state_dict.

    A state that is the same on every rank (DDP) is staged by local rank 0 of each node, and every rank loads it. A
    state with DTensors (FSDP2's `fully_shard`, tensor parallelism) is sharded: every rank stages its own part, without
    a collective, and loads the part that is its own now, whatever number of ranks or mesh wrote the checkpoint.
    """

    def __init__(
        self,
        state: dict[str, Any],
        *,
        keeper: Link | StandaloneKeeper | None = None,
        rank: int = 0,
        local_rank: int = 0,
        ahead: SegmentFile | None = None,
        clock: Callable[[], float] = time.time,
        copies: Callable[[torch.device], DeviceCopies | None] = copies_from,
        is_aborted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Announce to the agent how much shared memory `state` needs.

        `keeper`: the node's agent; without one, what writes to the store by itself; None: nothing is kept. `ahead` is
        the result of `map_segment_ahead`. `copies`: those from a device that can run beside training. `is_aborted`:
        have collectives been aborted? It says so before they are. Raises StateError (a value that cannot be
        checkpointed, with its key path), LinkError (no room in shared memory).
        """
        self.stall_s = 0.0
        """How long the last `save` blocked training.

        Where copies run beside it, this is the device's time: a `save` that waits, as for the commit of the one before,
        blocks nothing while the device works on what is queued. What counts is the time from when the device had done
        all that was queued before `save` to the end of `save`, and the time for which steps waited for copies of saves
        before, as far as the device has told it.
        """
        self.staged_bytes = 0
        """What the last `save` staged; 0: nothing. Whoever tells it sets it back, as with the next and `stall_s`."""
        self.copy_s = 0.0
        """How long the copies took of the save that ended with the last `save`, without what they had to wait for."""
        self.restored = 0
        """The iteration that `load` restored; 0: none."""
        self.slot_bytes = 0
        """Without a keeper: how large a slot for the state would be; 0: each rank has its own part of it."""
        alone = keeper if isinstance(keeper, StandaloneKeeper) else None
        link = keeper if not isinstance(keeper, StandaloneKeeper) else None
        self._link, self._alone, self._ahead, self._clock = link, alone, ahead, clock
        self._is_aborted = is_aborted
        self._overlapped: OverlappedSaves | None = None
        self._commit_link: Link | None = None
        """For the thread that commits overlapped saves."""
        self._rank, self._local_rank = rank, local_rank
        self._segment: SegmentFile | None = None
        self._held_s = 0.0
        """How long the device waited for copies, which no `save` has told yet."""
        self._waited_s = 0.0
        """How long the last `save` waited for memory that was still being allocated."""
        self._beacon = Beacon()
        """The newest."""
        self._saved = 0
        self._saved_here = False
        """Was it staged in this round, rather than only restored?"""
        self._populated = False
        self._walker = Flattener()
        tree = self._flatten(state)
        self._device = device_of(tree)
        self._has_device = self._device.type != "cpu" or torch.accelerator.is_available()
        """May a device have computed the state? It may be on the CPU all the same, as with FSDP2's CPUOffloadPolicy."""
        self._make_copies, self._copies = copies, None
        self._sharded = tree.is_sharded() or (isinstance(state, RankState) and world_size() > 1)
        self._stages = self._sharded or local_rank == 0
        self._interval = StagingInterval(0.0)
        self._persisted = False
        """Was the last save to be persisted?"""
        self._announce_first(tree)

    def _announce_first(self, tree: FlatState) -> None:
        """Tell whoever keeps the state of it; if nobody does, note how much memory it would need."""
        if self._link is not None:
            self._announce(tree, _encode_values(0, tree))
        elif self._alone is not None:
            self._alone.device = self._device
            if self._sharded:
                self._alone.join(self._rank, world_size())
        elif not self._sharded:
            with suppress(StateError):  # Nothing is staged here.
                self.slot_bytes = _plan(tree, _encode_values(0, tree)).size

    @pause_gc()
    def load(self, state: dict[str, Any]) -> int:
        """Restore the newest checkpoint into `state`, in place. Returns its iteration; 0 if there is none.

        Call it on every rank: all restore the same checkpoint, or all fail. A damaged checkpoint is passed over for an
        older one; under an agent, this process then ends and another round begins. Raises RestoreError if the
        checkpoint belongs to another model, or if none can be read although some may be complete; LinkError if memory
        has no room for it.
        """
        if self._link is None:
            restored_iteration = (
                self._alone.restore(lambda sources: reshard(*sources, state, self._rank)) if self._alone else None
            )
            self._saved = self.restored = restored_iteration or 0
            return self._saved
        self._link.tell(Fetch())
        live = self._flatten(state)  # While the agent answers.
        with in_worker.doing(FETCH):
            place = self._link.read_answer(Fetched)
        if not place.path and not place.sources:
            self._populate()
            return 0
        with report_damage(self._link, place):
            self._saved = self._restore(place, state, live)
            if self._saved != place.iteration:
                raise DamagedError(f"iteration {place.iteration} was promised, the checkpoint says {self._saved}")
        self.restored = self._saved
        self._populate()
        return self._saved

    @pause_gc()
    def save(self, iteration: int, state: dict[str, Any], persist: bool = False) -> None:
        """Stage `state` as it is after `iteration`. Training waits for one copy in memory; the agent does the rest.

        `persist=True` copies it to the store regardless of the interval; from a GPU, `save` then returns when the copy
        has ended. Call it on every rank.
        """
        began, self._waited_s = time.perf_counter(), 0.0
        is_staged = persist or self._interval.is_due(iteration) or self._is_asked_for()
        mark = self._copies.mark() if is_staged and self._copies is not None and self._overlapped is not None else None
        self._save(iteration, state, persist, is_staged)
        self.stall_s = mark.idle_s() if mark is not None else time.perf_counter() - began
        self.stall_s, self._held_s = self.stall_s + self._held_s, 0.0
        is_typical = self._overlapped is None or self._overlapped.is_typical
        stall_s = max(0.0, self.stall_s - self._waited_s)
        if self._interval.record_save(stall_s, is_staged, began, is_typical) and self._rank == 0:
            print(f"everstep: {self._interval.why}", file=sys.stderr)

    def _save(self, iteration: int, state: dict[str, Any], persist: bool, is_staged: bool) -> None:
        same = iteration == self._saved and self._saved_here
        if is_staged and self._stages and not (same and (self._persisted or not persist)):
            if self._link is not None:
                self._stage(iteration, state, persist)
            elif self._alone is not None:
                self._alone.save(iteration, self._walker.flatten(state), persist)
        self._persisted = persist or (same and self._persisted)
        self._saved, self._saved_here = iteration, is_staged or same

    def _is_asked_for(self) -> bool:
        """Whether the agent wants each iteration from now on, as it does before a job ends."""
        return self._segment is not None and self._segment.wants_stage

    def flush(self, iteration: int) -> str:
        """Wait until `iteration`, which was saved before, is committed in the store. Returns the manifest's key, or ""
        on a node that does not persist. Raises LinkError or StoreError if it cannot be committed."""
        if not self._stages:
            return ""
        if self._link is None:
            return self._alone.flush(iteration) if self._alone else ""
        self._finish_overlapped()
        return self._link.ask(Flush(iteration), Done).detail

    @property
    def saved(self) -> int:
        """The newest iteration that was saved, or restored; 0: none."""
        return self._saved

    @property
    def segment(self) -> SegmentFile | None:
        """The shared memory that this rank stages into."""
        return self._segment

    def close(self) -> None:
        """Wait for the copies that still run; afterwards nothing writes a slot."""
        if self._overlapped is not None:
            self._overlapped.close()

    def finish(self, state: dict[str, Any]) -> str:
        """End the training: wait until the last state is committed in the store. Returns the manifest's key. Raises
        LinkError."""
        if self._saved == 0:
            return ""
        self._finish_overlapped()
        if self._saved_here and self._overlapped is not None and not self._overlapped.is_kept:
            if world_size() > 1:  # Others may have kept theirs.
                raise LinkError(NOT_KEPT.format(self._saved))
            self._saved_here = False
        if not self._saved_here or self._link is None:
            self._save(self._saved, state, persist=self._link is None, is_staged=True)
        return self.flush(self._saved)

    def beacon(self, iteration: int, phase: str) -> None:
        """Publish this worker's progress in shared memory."""
        if self._segment is not None:
            self._beacon = Beacon(iteration, phase, self._clock(), self._beacon.changes + 1)
            self._segment.set_beacon(self._beacon)

    def correct_beacon(self, iteration: int) -> None:
        """Publish that the newest beacon is of this iteration, which is no progress."""
        if self._segment is not None:
            self._beacon = replace(self._beacon, iteration=iteration)
            self._segment.set_beacon(self._beacon)

    def restore(self, place: Fetched, state: dict[str, Any]) -> int:
        """Load the checkpoint that the agent supplied at `place`; returns its iteration.

        Loads the shard in this node's memory if it has the same parts, else ranges of all shards. Raises RestoreError.
        """
        return self._restore(place, state, self._flatten(state))

    def _flatten(self, state: dict[str, Any]) -> FlatState:
        prepare_state(state)
        return self._walker.flatten(state)

    def _restore(self, place: Fetched, state: dict[str, Any], live: FlatState) -> int:
        assert self._link is not None
        if place.path:
            stager = self._stager if self._stages and self._stager.knows(live) else None
            shard = open_local_shard(self._own_shard(place), live, stager.layout if stager else None)
            stager = stager if stager and shard.layout is stager.layout else None
            if stager or has_same_parts(shard, live):
                return load_shard(shard, state, live, stager, self._copies)
        return reshard(*shard_sources(self._link, place), state, self._rank)

    def _own_shard(self, place: Fetched) -> memoryview:
        """The shard in this node's memory."""
        return self._map_segment(Path(place.path)).bytes_at(place.offset, place.size)

    def _map_segment(self, path: Path) -> SegmentFile:
        """A segment of this rank, of another local rank, or of an earlier size. Reuses an existing mapping, whose pages
        are mapped already."""
        for mapped_segment in (self._segment, self._ahead):
            if mapped_segment is not None and mapped_segment.path == path and mapped_segment.is_current():
                return mapped_segment
        return SegmentFile.open(path)

    def _announce(self, tree: FlatState, text: bytes) -> None:
        assert self._link is not None
        capacity = 0
        if self._stages:
            self._stager = Stager(_plan(tree, text), tree)
            capacity = self._stager.layout.size
            self.close()
        segment = self._link.ask(Announce(capacity, self._sharded), Segment)
        if self._stages and segment.overhead != self._interval.overhead:
            largest = partial(max_over_ranks, own=self._device) if self._sharded else float
            self._interval = StagingInterval(segment.overhead, largest)
        self._segment, self._populated = self._map_segment(Path(segment.path)), not capacity
        if self._segment.copies is None:
            self._segment.copies = self._make_copies(self._device)
        self._copies = self._segment.copies
        self._overlapped = OverlappedSaves(self._copies, not self._rank) if self._copies and capacity else None
        if capacity and self._rank == 0:
            size, slot = segment.slots * segment.capacity, segment.capacity
            copies = f"{segment.copies} slots ({segment.copies * slot / 1e6:.1f} MB) for copies of other nodes' parts"
            more = f", and up to {copies}" if self._sharded and segment.copies else ""
            what = f"{segment.slots} slots of {slot / 1e6:.1f} MB"
            print(f"everstep: {size / 1e6:.1f} MB of shared memory for this state: {what}{more}", file=sys.stderr)

    def _populate(self) -> None:
        """Map the pages once, and not during a restore, which needs both the memory bandwidth and the cores. The
        segment that was mapped ahead may be another one, and is released."""
        self._ahead = None
        if self._segment is not None and not self._populated:
            self._segment.populate_slots()
            self._populated = True

    def _stage(self, iteration: int, state: dict[str, Any], persist: bool) -> None:
        assert self._link is not None
        self._finish_overlapped()
        self._link.tell(Acquire(iteration))
        tree = self._walker.flatten(state)  # While the agent answers.
        text = _encode_values(iteration, tree)
        layout = self._stager.layout
        if not self._stager.fits(tree) or len(text) > layout.state.size:
            print("everstep: the state changed its layout; its shared memory is allocated again", file=sys.stderr)
            self._announce(tree, text)
            self._link.tell(Acquire(iteration))
        assert self._segment is not None
        with in_worker.doing(MEMORY):
            reply = self._link.read_answer(Slot)
        slot, self._waited_s = reply.slot, reply.waited_s
        buffer = self._segment.slot(slot)
        stage = Staged(slot, iteration, self._stager.layout.size, persist, self._interval.why)
        if self._overlapped is not None:
            place = slot, buffer
            commit = partial(self._commit, stage)
            layout = self._stager.layout
            self._overlapped.begin(layout, place, state, tree, text, commit, iteration=iteration, waits=persist)
        else:
            began = time.perf_counter()
            self._stager.stage(slot, buffer, tree, text, iteration)
            self.copy_s = time.perf_counter() - began
            if self._has_device:
                self._require_sound()
            self._link.tell(stage)
            faults.point("checkpoint.after_commit", iteration=iteration)
        self.staged_bytes = stage.size
        self._populate()

    def _finish_overlapped(self) -> None:
        if self._overlapped is not None:
            self.copy_s, held_s = self._overlapped.finish()
            self._held_s += held_s

    def _require_sound(self) -> None:
        """Call it when the copies have ended. Invariant: no state is committed that a device has computed after its
        collectives were aborted, as it queues work far ahead and goes on with whatever is in the buffers. (Without a
        device, an aborted collective raises before anything uses its result. A script without an agent is not told.)
        Raises AbortedError."""
        if self._is_aborted():
            raise AbortedError("this round's collectives were aborted: what the device computed since is not kept")

    def _commit(self, stage: Staged) -> None:
        """In the thread of the overlapped saves."""
        self._require_sound()
        if self._commit_link is None:
            assert self._link is not None
            self._commit_link = self._link.another()
        self._commit_link.ask(stage, Done)


def map_segment_ahead(link: Link | None, mapped: SegmentFile | None = None) -> SegmentFile | None:
    """Map the segment of the shard that this worker will start from, if the agent names it in its greeting. The pages
    are mapped while the worker builds its model.

    `mapped`: the segment of the round before, whose pages are mapped already."""
    if link is None or not link.welcome.path:
        return None
    path = Path(link.welcome.path)
    if mapped is not None and mapped.path == path and mapped.is_current():
        return mapped
    with suppress(SegmentError):
        segment = SegmentFile.open(path)
        segment.populate(link.welcome.offset, link.welcome.size)
        return segment
    return None


def _plan(tree: FlatState, text: bytes) -> Layout:
    return plan_layout(tree.tensors, state_capacity(text), tree.parts())


def _encode_values(iteration: int, tree: FlatState) -> bytes:
    """The JSON part of a shard."""
    return json_bytes({"iteration": iteration, "state": tree.json})


@contextmanager
def report_damage(link: Link, place: Fetched) -> Iterator[None]:
    """If the checkpoint turns out to be damaged within the block, report it to the agent. The process then ends with
    the round, and the next round starts from an older checkpoint."""
    try:
        yield
    except RestoreError as error:
        if error.flaw is not None:
            everywhere = Refusal(place.round, place.iteration, str(error), error.flaw)
            link.refuse_restore(error.refusals if isinstance(error, PassedOverError) else (everywhere,))
        raise


def shard_sources(link: Link, place: Fetched) -> Sources:
    """The holders of all shards of the checkpoint at `place`: this node's memory, or for a sharded state every
    holder."""
    if place.sources:
        store, credentials = open_store(link.welcome.store), Credentials(place.token, place.authority)
        return Sources(place.sources, partial(read, store=store, credentials=credentials))
    data = SegmentFile.open(Path(place.path)).bytes_at(place.offset, place.size)
    holding = Holding(place.round, place.iteration, size=place.size, digest=place.digest)
    return Sources((holding,), partial(read_bytes, data))
