"""Copies from and to a CUDA device, on a stream of their own. Written after CUDA's and PyTorch's documentation; never
run.

`cudaHostRegister` makes the slot's pages as fast as pinned ones, and copies to it asynchronous (CUDA Runtime API,
"Memory Management"). Memory must be unregistered before it is unmapped: CUDA would go on to use the old pages for what
is mapped there later. It is registered in parts: the driver holds a lock of all processes meanwhile, and Linux 6.11 to
6.13 pins less than 2 GiB at once (TensorRT-LLM, pull request 17773). A copy must not leave the registered range that it
begins in (CUDA Driver API, cuMemcpyAsync). Streams and events: PyTorch, "CUDA semantics". A restore does not register
the slot, as that takes longer than the copy: its blocks go through a few pinned buffers.

A new thread's current device is the first one, and most calls of the runtime make a context on the current device: some
hundred MB of it for each rank. So every thread selects its own device before any such call, and returns to a device
without a context only in name, as `torch.cuda.device` does.

A process that is forked while slots are registered, as a DataLoader's are, must call nothing of CUDA (PyTorch,
"Multiprocessing best practices"), so it unregisters nothing. It does not disturb the parent: slots are shared mappings,
whose pages are not copied on a write after a fork (mmap(2), MAP_SHARED), so the device and the parent go on with the
same ones.
"""

import os
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch

from everstep.runtime.checkpoint.shard.device_copies import Gather, Pairs, Piece, as_bytes, packed_views
from everstep.runtime.checkpoint.shard.digests import BLOCK_BYTES
from everstep.runtime.checkpoint.shard.layout import SMALL_BYTES

_BUFFERS = 16
"""Pinned buffers of one block each, for the blocks that are on their way to the device. Pinning one takes longer than
copying it: they are made as they are needed."""
_REGISTERED_BYTES = 1 << 30
"""Registered at once."""
_PRIORITY = -2
"""torch has 32 streams of each priority, and gives them out in turn (CUDAStream.h, "Stream pool note"): one that is
asked for later would be the copies' own, and each would wait for the other. Most programs ask for 0, FSDP2 for -1, NCCL
for 0 or the highest of four. A device that has fewer takes the nearest."""


class CudaCopies:
    """Implements `DeviceCopies`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.upload_threads = max(1, min(_BUFFERS, len(os.sched_getaffinity(0)) // max(1, torch.cuda.device_count())))
        """A worker's share of its node's cores: launchers give torch's own work one thread where a node has several
        workers."""
        self._stream = torch.cuda.Stream(device, priority=_PRIORITY)
        self._registered: dict[int, torch.Tensor] = {}
        """By their addresses; they keep the memory mapped."""
        self._seams: tuple[int, ...] = ()
        """Addresses at which a registered part begins or ends, in order. Replaced, never changed: another slot may be
        registered while copies begin."""
        self._packs = True
        """Are small tensors packed on the device?"""
        weakref.finalize(self, _unregister_at_end, device, self._registered, os.getpid()).atexit = False

    def register(self, memory: memoryview, is_cancelled: Callable[[], bool] = lambda: False) -> bool:
        """Raises RuntimeError, as where the driver locks no more memory. CUDA keeps the error for this thread's next
        kernel, too: so call it in a thread that launches none."""
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        if flat.data_ptr() in self._registered:
            return False
        parts = {part.data_ptr(): part for part in flat.split(_REGISTERED_BYTES)}
        done = dict[int, torch.Tensor]()
        try:
            with torch.cuda.device(self.device):
                for address, part in parts.items():
                    if is_cancelled():  # A survivor has little time to leave a round.
                        _unregister(self.device, done)
                        return False
                    if code := int(_runtime().cudaHostRegister(address, len(part), 0)):
                        _unregister(self.device, done)
                        raise RuntimeError(f"cudaHostRegister of {len(flat) / 1e6:.1f} MB: {_describe(code)}")
                    done[address] = part
        finally:  # Also what could not be unregistered.
            self._registered |= done
            edges = {edge for at, part in self._registered.items() for edge in (at, at + len(part))}
            self._seams = tuple(sorted(edges))
        return True

    def wait(self) -> None:
        """See the protocol."""
        with torch.cuda.device(self.device):
            self._stream.synchronize()

    def is_recording(self) -> bool:
        """See the protocol."""
        with torch.cuda.device(self.device):
            return torch.cuda.is_current_stream_capturing()

    def begin(self, pairs: Pairs, gathers: Sequence[Gather], at_once: Pairs = ()) -> "_CudaCopying":
        """Raises RuntimeError (torch.OutOfMemoryError: no room to copy a tensor with gaps, or a conjugated one)."""
        with torch.no_grad(), torch.cuda.device(self.device):
            with torch.cuda.stream(self._stream):
                buffers = [self._room_for(gather) for gather in gathers]
            for target, source in at_once:
                self._copy(target, source)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.no_grad(), torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            begin_event = _record(self._stream)
            for target, source in pairs:  # First, as the device copies them while the others are prepared.
                self._copy(target, source)
            for gather, buffer in zip(gathers, buffers, strict=True):
                if buffer is None:
                    for target, source in zip(packed_views(gather.target, gather), gather.sources, strict=True):
                        self._copy(target, _bytes_of(source))
                    continue
                torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
                    packed_views(buffer, gather), list(map(_bytes_of, gather.sources))
                )
                self._copy(gather.target, buffer)
            for source in [
                *(source for _, source in pairs),
                *(source for gather in gathers for source in gather.sources),
            ]:
                source.record_stream(self._stream)  # Its memory is not used again before the copy, even if it is freed.
            end_event = _record(self._stream, blocking=True)  # Who waits for it sleeps, and does not use up a core.
        return _CudaCopying(self.device, begin_event, end_event)

    def mark(self) -> "_CudaMark":
        """See the protocol."""
        with torch.cuda.device(self.device):
            return _CudaMark(torch.cuda.current_stream(self.device))

    def uploads(self) -> "_CudaUploads":
        """See the protocol."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        return _CudaUploads(self._stream)

    def _room_for(self, gather: Gather) -> torch.Tensor | None:
        """Where the small tensors are packed; None if the device is full: they are then copied one by one. It is not
        tried again, as torch gives up all memory that it caches before it says so."""
        if self._packs:
            try:
                return torch.empty(len(gather.target), dtype=torch.uint8, device=self.device)
            except torch.OutOfMemoryError:
                self._packs = False
        return None

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """On the present stream. A full device may have no room for a source's copy that is contiguous: then the source
        comes to the host as it is, which waits for the stream."""
        try:
            self._copy_beside(target, source)
        except torch.OutOfMemoryError:
            target.copy_(source.cpu())

    def _copy_beside(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """On the present stream, in parts where a seam crosses the target.

        torch conjugates and negates on the host, and does not wait for the bytes (Copy.cu): so the device does it."""
        start, end, seams = target.data_ptr(), target.data_ptr() + target.nbytes, self._seams
        cuts = [seam - start for seam in seams[bisect_right(seams, start) : bisect_left(seams, end)]]
        if source.is_conj() or source.is_neg() or (cuts and not source.is_contiguous()):
            source = torch.empty(source.shape, dtype=source.dtype, device=source.device).copy_(source)
        if not cuts:
            target.copy_(source, non_blocking=True)
            return
        flat_target, flat_source = (some.reshape(-1).view(torch.uint8) for some in (target, source))
        for part in map(slice, [0, *cuts], [*cuts, None]):
            flat_target[part].copy_(flat_source[part], non_blocking=True)


def _bytes_of(source: torch.Tensor) -> torch.Tensor:
    """`as_bytes`; on the host if a full device has no room for them."""
    try:
        return as_bytes(source)
    except torch.OutOfMemoryError:
        return as_bytes(source.cpu())


def _unregister_at_end(device: torch.device, registered: dict[int, torch.Tensor], pid: int) -> None:
    """Not in a process that was forked."""
    if os.getpid() == pid:
        _unregister(device, registered)


def _unregister(device: torch.device, registered: dict[int, torch.Tensor]) -> None:
    """Raises RuntimeError."""
    with torch.cuda.device(device):
        while registered:
            address = next(iter(registered))
            if code := int(_runtime().cudaHostUnregister(address)):
                raise RuntimeError(f"cudaHostUnregister: {_describe(code)}")
            del registered[address]


def _runtime() -> Any:
    return torch.cuda.cudart()


def _describe(code: int) -> str:
    """CUDA's words for an error."""
    return f"{_runtime().cudaGetErrorString(_runtime().cudaError(code))} ({code})"


def _record(stream: torch.cuda.Stream, blocking: bool = False) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True, blocking=blocking)
    event.record(stream)
    return event


class _CudaCopying:
    def __init__(self, device: torch.device, begin_event: torch.cuda.Event, end_event: torch.cuda.Event) -> None:
        self._device, self._began, self._ended = device, begin_event, end_event
        self._holds: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        """Before and after each."""

    def hold(self) -> None:
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream(self._device)
            before = _record(stream)
            stream.wait_event(self._ended)
            self._holds.append((before, _record(stream)))

    def wait(self) -> None:
        with torch.cuda.device(self._device):
            self._ended.synchronize()

    def copy_s(self) -> float:
        with torch.cuda.device(self._device):
            return self._began.elapsed_time(self._ended) / 1000

    def held_s(self) -> float | None:
        with torch.cuda.device(self._device):
            if not all(after.query() for _, after in self._holds):
                return None
            return max((before.elapsed_time(after) / 1000 for before, after in self._holds), default=0.0)


class _CudaMark:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream, self._reached = stream, _record(stream)

    def idle_s(self) -> float:
        with torch.cuda.device(self._stream.device):
            if not self._reached.query():
                return 0.0
            now = _record(self._stream)
            now.synchronize()  # At once, as nothing else is queued, or what is copied at once.
            return self._reached.elapsed_time(now) / 1000


class _Pinned(NamedTuple):
    memory: torch.Tensor
    free: torch.cuda.Event
    """When the device has read it."""


class _CudaUploads:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._buffers = SimpleQueue[_Pinned | None]()
        """None: it is not made yet."""
        for _ in range(_BUFFERS):
            self._buffers.put(None)

    def add(self, block: memoryview, pieces: Sequence[Piece]) -> None:
        with torch.no_grad(), torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
            buffer = self._buffers.get()
            try:
                buffer = buffer or _make_pinned()
                buffer.free.synchronize()
                source = buffer.memory[: len(block)]
                source.numpy()[:] = np.frombuffer(block, np.uint8)  # By this thread alone: torch would use all of its.
                _upload(source, pieces)
                buffer.free.record(self._stream)
            finally:
                self._buffers.put(buffer)

    def wait(self) -> None:
        with torch.cuda.device(self._stream.device):
            self._stream.synchronize()


def _make_pinned() -> _Pinned:
    memory = torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)
    return _Pinned(memory, torch.cuda.Event(blocking=True))


def _upload(source: torch.Tensor, pieces: Sequence[Piece]) -> None:
    """On the present stream. Small pieces go to the device together."""
    small = [piece for piece in pieces if len(piece.target) < SMALL_BYTES]
    for offset, target in (piece for piece in pieces if len(piece.target) >= SMALL_BYTES):
        target.copy_(source[offset : offset + len(target)], non_blocking=True)
    if small:
        first, end = min(piece.offset for piece in small), max(piece.offset + len(piece.target) for piece in small)
        uploaded = source[first:end].to(small[0].target.device, non_blocking=True)
        views = [uploaded[offset - first : offset - first + len(target)] for offset, target in small]
        torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
            [piece.target for piece in small], views
        )
