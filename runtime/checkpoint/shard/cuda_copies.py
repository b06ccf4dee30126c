"""Copies from and to a CUDA device, on a stream of their own. Written after CUDA's and PyTorch's documentation; never
run.

`cudaHostRegister` makes the slot's pages as fast as pinned ones, and copies to it asynchronous (CUDA Runtime API,
"Memory Management"). Memory must be unregistered before it is unmapped: CUDA would go on to use the old pages for what
is mapped there later. Streams and events: PyTorch, "CUDA semantics". A restore does not register the slot, as that
takes longer than the copy: its blocks go through a few pinned buffers.

A new thread's current device is the first one, and most calls of the runtime make a context on the current device: some
hundred MB of it for each rank. So every thread selects its own device before any such call, and returns to a device
without a context only in name, as `torch.cuda.device` does.
"""

import os
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch

from everstep.runtime.checkpoint.shard.device_copies import Gather, Piece, packed_views
from everstep.runtime.checkpoint.shard.digests import BLOCK_BYTES
from everstep.runtime.checkpoint.shard.layout import SMALL_BYTES

_BUFFERS = 16
"""Pinned buffers of one block each, for the blocks that are on their way to the device. Pinning one takes longer than
copying it: they are made as they are needed."""


class CudaCopies:
    """Implements `DeviceCopies`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.upload_threads = max(1, min(_BUFFERS, len(os.sched_getaffinity(0)) // max(1, torch.cuda.device_count())))
        """A worker's share of its node's cores: launchers give torch's own work one thread where a node has several
        workers."""
        self._stream = torch.cuda.Stream(device)
        self._registered: list[torch.Tensor] = []
        """They keep the memory mapped."""

    def register(self, memory: memoryview) -> None:
        """Raises RuntimeError, as where the driver locks no more memory. CUDA keeps the error for this thread's next
        kernel, too: so call it in a thread that launches none."""
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        with torch.cuda.device(self.device):
            if code := int(_runtime().cudaHostRegister(flat.data_ptr(), len(flat), 0)):
                raise RuntimeError(f"cudaHostRegister of {len(flat) / 1e6:.1f} MB: {_describe(code)}")
        self._registered.append(flat)

    def unregister(self) -> None:
        """See the protocol. Raises RuntimeError."""
        with torch.cuda.device(self.device):
            self._stream.synchronize()
            while self._registered:
                if code := int(_runtime().cudaHostUnregister(self._registered[-1].data_ptr())):
                    raise RuntimeError(f"cudaHostUnregister: {_describe(code)}")
                self._registered.pop()

    def is_recording(self) -> bool:
        """See the protocol."""
        with torch.cuda.device(self.device):
            return torch.cuda.is_current_stream_capturing()

    def begin(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], gathers: Sequence[Gather]) -> "_CudaCopying":
        """Raises RuntimeError (torch.OutOfMemoryError: no room to pack the small tensors)."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.no_grad(), torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            # Before any copy begins, as after an error nothing may write the slot any more.
            buffers = [torch.empty(len(gather.target), dtype=torch.uint8, device=self.device) for gather in gathers]
            for target, source in pairs:  # First, as the device copies them while the others are prepared.
                target.copy_(source, non_blocking=True)
            for gather, buffer in zip(gathers, buffers, strict=True):
                torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
                    packed_views(buffer, gather), list(gather.sources)
                )
                gather.target.copy_(buffer, non_blocking=True)
            for source in [
                *(source for _, source in pairs),
                *(source for gather in gathers for source in gather.sources),
            ]:
                source.record_stream(self._stream)  # Its memory is not used again before the copy, even if it is freed.
            end_event = torch.cuda.Event(blocking=True)  # Who waits for it sleeps, and does not use up a core.
            end_event.record(self._stream)
        return _CudaCopying(self.device, end_event)

    def uploads(self) -> "_CudaUploads":
        """See the protocol."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        return _CudaUploads(self._stream)


def _runtime() -> Any:
    return torch.cuda.cudart()


def _describe(code: int) -> str:
    """CUDA's words for an error."""
    return f"{_runtime().cudaGetErrorString(_runtime().cudaError(code))} ({code})"


class _CudaCopying:
    def __init__(self, device: torch.device, end_event: torch.cuda.Event) -> None:
        self._device, self._ended = device, end_event

    def hold(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._ended)

    def wait(self) -> None:
        with torch.cuda.device(self._device):
            self._ended.synchronize()


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
    memory = torch.empty(BLOCK_BYTES, dtype=torch.uint8, pin_memory=True)
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
