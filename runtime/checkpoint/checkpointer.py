"""The worker's side: announce the state's size, stage it after each iteration, restore it when the worker starts."""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from runtime import faults
from runtime.agent.link import Acquire, Announce, Done, Fetch, Fetched, Flush, Link, Segment, Slot, Staged
from runtime.checkpoint.alone import Alone
from runtime.checkpoint.errors import RestoreError, StateError
from runtime.checkpoint.fetch import read
from runtime.checkpoint.layout import plan, state_capacity
from runtime.checkpoint.reshard import reshard
from runtime.checkpoint.restore import cut_alike, load, opened
from runtime.checkpoint.segment import Beacon, SegmentFile
from runtime.checkpoint.stage import Stager
from runtime.checkpoint.tree import Tree, Walker, flatten, prepare
from runtime.job.messages import Holding
from runtime.store import open_store


class Checkpointer:
    """Saves and loads one state, a dict of modules, optimizers, tensors, numbers, strings, objects with state_dict.

    A state that is the same on every rank (DDP) is staged by local rank 0 of each node, and every rank loads it. One
    that has DTensors (FSDP2's `fully_shard`, tensor parallelism) is sharded: every rank stages its own part, without a
    collective, and loads what is its part now, whatever number of ranks or mesh cut the checkpoint.
    """

    def __init__(
        self,
        state: dict[str, Any],
        *,
        link: Link | None = None,
        rank: int = 0,
        local_rank: int = 0,
        alone: Alone | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Tell the agent how much shared memory `state` needs. `alone` keeps checkpoints where there is no agent.

        Raises StateError (what cannot be checkpointed, by key path), LinkError (no room in shared memory).
        """
        self.stall_s = 0.0
        """How long the last `save` held training up."""
        self._link, self._alone, self._clock = link, alone, clock
        self._rank, self._local_rank = rank, local_rank
        self._segment: SegmentFile | None = None
        self._shown = 0
        """Changes of the beacon."""
        self._saved = 0
        self._saved_here = False
        """Was it staged in this round (not only restored)?"""
        self._populated = False
        prepare(state)
        self._walker = Walker()
        tree = self._walker.flatten(state)
        self._sharded = tree.sharded()
        if self._sharded and alone is not None:
            raise StateError(
                "state: it is sharded over ranks; its checkpoints need an agent: start with everstep launch"
            )
        self._stages = self._sharded or local_rank == 0
        if link is not None:
            self._announce(tree)

    def load(self, state: dict[str, Any]) -> int:
        """Restore the newest checkpoint into `state`, in place; returns its iteration, 0 when there is none.

        Raises RestoreError when it is of another model or damaged; LinkError when no source can give it.
        """
        if self._link is None:
            self._saved = self._alone.load(state) if self._alone else 0
            return self._saved
        place = self._link.ask(Fetch(), Fetched)
        if not place.path and not place.sources:
            self._populate()
            return 0
        self._saved = self._restore(place, state)
        if self._saved != place.iteration:
            raise RestoreError(f"iteration {place.iteration} was promised, the checkpoint says {self._saved}")
        self._populate()
        return self._saved

    def save(self, iteration: int, state: dict[str, Any], persist: bool = False) -> None:
        """Stage `state` as it is after `iteration`; training waits for one copy in memory. The agent does the rest.

        `persist` copies it to the store whatever the interval says. Call it on every rank.
        """
        began = time.perf_counter()
        if self._stages and (iteration != self._saved or not self._saved_here):
            if self._link is not None:
                self._stage(iteration, state, persist)
            elif self._alone is not None:
                self._alone.save(iteration, flatten(state), persist)
        self._saved, self._saved_here = iteration, True
        self.stall_s = time.perf_counter() - began

    def flush(self, iteration: int) -> str:
        """Wait until `iteration`, saved before, is committed in the store; the manifest's key ("" on a node that does
        not persist). Raises LinkError when it cannot be."""
        if self._link is None or not self._stages:
            return ""
        return self._link.ask(Flush(iteration), Done).detail

    def finish(self, state: dict[str, Any]) -> str:
        """Training is over: the last state is in the store, committed, when this returns; the manifest's key."""
        if self._saved == 0:
            return ""
        if self._link is None:
            if self._alone is not None and self._stages:
                self._alone.save(self._saved, flatten(state), persist=True)
            return ""
        if not self._saved_here:
            self.save(self._saved, state)
        return self.flush(self._saved)

    def beacon(self, iteration: int, phase: str) -> None:
        """Show in shared memory how far this worker is."""
        if self._segment is not None:
            self._shown += 1
            self._segment.set_beacon(Beacon(iteration, phase, self._clock(), self._shown))

    def _restore(self, place: Fetched, state: dict[str, Any]) -> int:
        """From the shard that lies in this node's memory where its cut is ours, else from parts of all shards."""
        assert self._link is not None
        whole = None
        if place.path:
            path, segment = Path(place.path), self._segment
            if segment is None or segment.path != path:  # another local rank's, or one of an earlier size
                segment = SegmentFile.open(path)
            data = segment.bytes_at(place.offset, place.size)
            shard = opened(data, self._stager.layout if self._stages else None)
            prepare(state)
            live = self._walker.flatten(state)
            if cut_alike(shard, live):
                return load(shard, state, live, place.digest)
            whole = data if not place.sources else None

        if whole is not None:
            one = Holding(place.round, place.iteration, size=place.size, digest=place.digest)
            return reshard((one,), state, self._rank, partial(_read_here, whole))
        store = open_store(self._link.welcome.store)
        return reshard(place.sources, state, self._rank, partial(read, store=store, token=place.token))

    def _announce(self, tree: Tree) -> None:
        assert self._link is not None
        capacity = 0
        if self._stages:
            self._stager = Stager(
                plan(tree.tensors, state_capacity({"iteration": 0, "state": tree.json}), tree.pieces())
            )
            capacity = self._stager.layout.size
        segment = self._link.ask(Announce(capacity, self._sharded), Segment)
        self._segment, self._populated = SegmentFile.open(Path(segment.path)), not capacity

    def _populate(self) -> None:
        """Once, and not while a state is restored: that has to have both, the memory's pages and the cores."""
        if self._segment is not None and not self._populated:
            self._segment.populate()
            self._populated = True

    def _stage(self, iteration: int, state: dict[str, Any], persist: bool) -> None:
        assert self._link is not None
        tree = self._walker.flatten(state)
        if not tree.again and not self._stager.layout.matches(tree.tensors):
            print("everstep: the state changed its form; its shared memory is made anew", file=sys.stderr)
            self._announce(tree)
        assert self._segment is not None
        slot = self._link.ask(Acquire(iteration), Slot).slot
        written = {"iteration": iteration, "state": tree.json}
        self._stager.stage(slot, self._segment.slot(slot), tree.tensors, written, iteration)
        self._link.ask(Staged(slot, iteration, self._stager.layout.size, persist), Done)
        self._populate()
        faults.point("checkpoint.after_commit", iteration=iteration)


def _read_here(data: memoryview, _: Holding, start: int, buffer: memoryview) -> None:
    buffer[:] = data[start : start + len(buffer)]
