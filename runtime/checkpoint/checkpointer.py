"""The worker's side: announce the state's size, stage it after each iteration, restore it when the worker starts."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime import faults
from runtime.agent.link import Acquire, Announce, Done, Fetch, Fetched, Flush, Link, Segment, Slot, Staged
from runtime.checkpoint.alone import Alone
from runtime.checkpoint.errors import RestoreError
from runtime.checkpoint.layout import plan, state_capacity
from runtime.checkpoint.restore import restore
from runtime.checkpoint.segment import Beacon, SegmentFile
from runtime.checkpoint.stage import Stager
from runtime.checkpoint.tree import Tree, flatten, prepare


class Checkpointer:
    """Saves and loads one state, a dict of modules, optimizers, tensors, numbers, strings, objects with state_dict.

    The state is the same on every rank (DDP): local rank 0 of each node stages it, every rank loads it.
    """

    def __init__(
        self,
        state: dict[str, Any],
        *,
        link: Link | None = None,
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
        self._stages = local_rank == 0
        self._segment: SegmentFile | None = None
        self._shown = 0
        """Changes of the beacon."""
        self._saved = 0
        self._saved_here = False
        """Was it staged in this round (not only restored)?"""
        prepare(state)
        if link is not None:
            self._announce(flatten(state))

    def load(self, state: dict[str, Any]) -> int:
        """Restore the newest checkpoint into `state`, in place; returns its iteration, 0 when there is none.

        Raises RestoreError when it is of another model or damaged; LinkError when no source can give it.
        """
        if self._link is None:
            found = self._alone.newest() if self._alone else None
            self._saved = restore(found[0], state, found[1]) if found else 0
            return self._saved
        place = self._link.ask(Fetch(), Fetched)
        if not place.path:
            return 0
        path, segment = Path(place.path), self._segment
        if segment is None or segment.path != path:  # another local rank's, or one of an earlier size
            segment = SegmentFile.open(path)
        self._saved = restore(segment.bytes_at(place.offset, place.size), state, place.digest)
        if self._saved != place.iteration:
            raise RestoreError(f"iteration {place.iteration} was promised, the checkpoint says {self._saved}")
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

    def _announce(self, tree: Tree) -> None:
        assert self._link is not None
        capacity = 0
        if self._stages:
            self._stager = Stager(plan(tree.tensors, state_capacity({"iteration": 0, "state": tree.json})))
            capacity = self._stager.layout.size
        segment = self._link.ask(Announce(capacity), Segment)
        self._segment = SegmentFile.open(Path(segment.path))
        if capacity:
            self._segment.populate()

    def _stage(self, iteration: int, state: dict[str, Any], persist: bool) -> None:
        assert self._link is not None
        tree = flatten(state)
        if not self._stager.layout.matches(tree.tensors):
            print("everstep: the state changed its form; its shared memory is made anew", file=sys.stderr)
            self._announce(tree)
        assert self._segment is not None
        slot = self._link.ask(Acquire(iteration), Slot).slot
        written = {"iteration": iteration, "state": tree.json}
        self._stager.stage(slot, self._segment.slot(slot), tree.tensors, written, iteration)
        self._link.ask(Staged(slot, iteration, self._stager.layout.size, persist), Done)
        faults.point("checkpoint.after_commit", iteration=iteration)
