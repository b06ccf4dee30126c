"""Copies of a state between a device and a slot. Those of a save run beside the next forward and backward pass.

Invariants of every save, whatever the device:
1. No byte is copied before what was queued on the device at `begin`, the optimizer's step, is done.
2. Nothing that is queued after `hold` changes a tensor before its copy has ended.
3. A shard is committed only after all of its copies have ended.

Only what an optimizer's step alone changes may be copied so: parameters and the optimizer's own tensors. The forward
pass changes others (the statistics of a batch norm): these are copied before `begin` returns, or if they are few bytes,
before the device does what is queued later.

Invariants of every restore, out of a slot whose bytes agree with their digests:
4. No byte is copied before what was queued on the device at `uploads` is done.
5. The slot is not released, and no tensor is used, before all copies have ended, also if one fails.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch

from everstep.runtime import faults
from everstep.runtime.checkpoint.shard.copy_to_slot import copy_tensors
from everstep.runtime.checkpoint.shard.layout import SMALL_BYTES, Layout, TensorInfo
from everstep.runtime.checkpoint.state.flatten import FlatState

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""(target in host memory, source on the device)"""
AT_ONCE_BYTES = 16 << 20
"""Copied in less than a millisecond, which is not worth a wait for the device."""


class Copying(Protocol):
    """The copies of one save."""

    def hold(self) -> None:
        """Have the device do nothing that is queued from now on before the copies have ended. Does not block."""
        ...

    def wait(self) -> None:
        """Block until they have ended. Any thread may call it. Raises RuntimeError if one failed."""
        ...

    def copy_s(self) -> float:
        """Seconds that they took on the device, from the moment at which it was done with what had been queued before.
        Call it after `wait`; those that were made at once do not count."""
        ...

    def held_s(self) -> float | None:
        """The longest time that a `hold` kept the device waiting; 0 if none did. None: the device has not got so far,
        ask later."""
        ...


class Mark(Protocol):
    """A place in what the caller queues."""

    def idle_s(self) -> float:
        """How long the device has been without work since it was done with what had been queued before; 0: it still has
        such work."""
        ...


class Piece(NamedTuple):
    """Bytes of a block that belong to a tensor on the device."""

    offset: int
    """In the block."""
    target: torch.Tensor
    """(bytes,) uint8, on the device."""


class Gather(NamedTuple):
    """Small tensors that lie side by side in the shard: packed on the device, then copied at once."""

    target: torch.Tensor
    """(bytes,) uint8 of the slot."""
    offsets: Sequence[int]
    """First byte of each source in `target`."""
    sources: Sequence[torch.Tensor]


class Uploads(Protocol):
    """The copies of one restore, from host memory to the device."""

    def add(self, block: memoryview, pieces: Sequence[Piece]) -> None:
        """Queue the copies of the pieces out of a block, whose bytes stay as they are until `wait`. Several threads may
        call it at once. Raises RuntimeError."""
        ...

    def wait(self) -> None:
        """Block until they have ended. Raises RuntimeError if one failed."""
        ...


class DeviceCopies(Protocol):
    """What a kind of device has to do."""

    device: torch.device
    """Only its tensors are copied so."""
    upload_threads: int
    """How many threads should call `Uploads.add`, whatever number torch's own work has: one reads a slot at a fraction
    of the bus's speed."""

    def register(self, memory: memoryview, is_cancelled: Callable[[], bool] = lambda: False) -> bool:
        """Prepare host memory for fast copies, unless it is prepared; takes some 0.2 s a GB. Copies into other memory
        are slower, and correct. Any thread may call it, while nothing is copied there. The memory stays mapped, and
        prepared, as long as this object lives, unless it `is_cancelled` meanwhile. Returns whether it was prepared now.
        Raises RuntimeError."""
        ...

    def wait(self) -> None:
        """Block until all copies have ended. Raises RuntimeError if one failed."""
        ...

    def is_recording(self) -> bool:
        """Is what the caller queues now recorded, to be done later, perhaps several times (a CUDA graph)?"""
        ...

    def begin(self, pairs: Pairs, gathers: Sequence[Gather], at_once: Pairs = ()) -> Copying:
        """Queue the copies. Those `at_once` have ended before what the caller queues later."""
        ...

    def mark(self) -> Mark:
        """The present place in what the caller queues."""
        ...

    def uploads(self) -> Uploads:
        """The copies of one restore."""
        ...


class CopyPlan:
    """Which tensors of a state are copied when. It holds for all states of the same traversal."""

    def __init__(
        self, layout: Layout, tensors: Mapping[str, torch.Tensor], later: Collection[str], device: torch.device
    ) -> None:
        """`later`: the names of the tensors that the optimizer's step alone changes."""
        self._layout = layout
        now = [name for name in layout.tensors if name in tensors and name not in later]
        self._at_once = [name for name in now if tensors[name].device == device]
        self._is_waited_for = sum(layout.tensors[name].size for name in self._at_once) > AT_ONCE_BYTES
        self._elsewhere = [name for name in now if tensors[name].device != device and tensors[name].is_cpu]
        self._on_others = [name for name in now if tensors[name].device != device and not tensors[name].is_cpu]
        self.later = [name for name in layout.tensors if name in later]
        """Their copies are queued, in the shard's order."""
        self._gathers = _adjacent(layout, [name for name in self.later if layout.tensors[name].size < SMALL_BYTES])
        names_gathered = {name for run in self._gathers for name in run}
        self._large = [name for name in self.later if name not in names_gathered]

    def begin(self, buffer: memoryview, tree: FlatState, json: bytes, copies: DeviceCopies, iteration: int) -> Copying:
        """Write head and JSON part, copy what changes at any time, and queue the other copies."""
        places, tensors = self._layout.tensors, tree.tensors
        faults.point("checkpoint.before_copy", iteration=iteration)
        self._layout.write_state(buffer, json)
        copy_tensors(
            [places[name].view(buffer) for name in self._elsewhere], [tensors[name] for name in self._elsewhere]
        )
        for name in self._on_others:  # Through memory that is in no slot: a copy of CUDA's may cross no seam of one.
            copy_tensors([places[name].view(buffer)], [tensors[name].cpu()])
        gathers = [_gather(buffer, [(places[name], tensors[name]) for name in run]) for run in self._gathers]
        at_once, pairs = (
            [(places[name].view(buffer), tensors[name]) for name in names] for names in (self._at_once, self._large)
        )
        if self._is_waited_for:
            copies.begin([], [], at_once).wait()
            at_once = []
        copying = copies.begin(pairs, gathers, at_once)
        faults.point("checkpoint.mid_copy", iteration=iteration)
        return copying


def packed_views(buffer: torch.Tensor, gather: Gather) -> list[torch.Tensor]:
    """Where in `buffer`, as large as the target, the bytes of each source belong: (bytes,) uint8."""
    return [buffer[start : start + source.nbytes] for start, source in zip(gather.offsets, gather.sources, strict=True)]


def as_bytes(source: torch.Tensor) -> torch.Tensor:
    """The bytes of a source in order, (bytes,) uint8. As such, tensors of all types are packed by one kernel of CUDA,
    which does not know every type (ForeachBinaryOpList.cu: no 8-bit floating-point ones)."""
    return source.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


def _gather(buffer: memoryview, members: Sequence[tuple[TensorInfo, torch.Tensor]]) -> Gather:
    start = members[0][0].start
    end = members[-1][0].start + members[-1][0].size
    target = torch.frombuffer(buffer, dtype=torch.uint8, offset=start, count=end - start)
    return Gather(target, [place.start - start for place, _ in members], [tensor for _, tensor in members])


def _adjacent(layout: Layout, names: Sequence[str]) -> list[list[str]]:
    """Runs of at least two tensors without a gap."""
    runs: list[list[str]] = []
    end = -1
    for name in names:
        place = layout.tensors[name]
        if place.size:
            if runs and place.start == end:
                runs[-1].append(name)
            else:
                runs.append([name])
            end = place.start + place.size
    return [run for run in runs if len(run) > 1]
