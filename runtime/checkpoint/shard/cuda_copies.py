"""Copies from a CUDA device, on a stream of their own. Written after CUDA's and PyTorch's documentation; never run.

`cudaHostRegister` makes the slot's pages as fast as pinned ones, and copies to it asynchronous (CUDA Runtime API,
"Memory Management"). Streams and events: PyTorch, "CUDA semantics".
"""

from collections.abc import Sequence
from typing import Any

import torch

from everstep.runtime.checkpoint.shard.device_copies import Gather, packed_views

_ALREADY_REGISTERED = 712
"""cudaErrorHostMemoryAlreadyRegistered: in an earlier round of this process."""


class CudaCopies:
    """Implements `DeviceCopies`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)

    def register(self, memory: memoryview) -> None:
        """Raises RuntimeError, as where the limit of locked memory is too low."""
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        cuda: Any = torch.cuda.cudart()
        code = int(cuda.cudaHostRegister(address, len(memory), 0))
        if code not in (0, _ALREADY_REGISTERED):
            raise RuntimeError(f"cudaHostRegister of {len(memory)} bytes: error {code}")

    def begin(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], gathers: Sequence[Gather]) -> "_CudaCopying":
        """Raises RuntimeError (torch.OutOfMemoryError: no room to pack the small tensors)."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.no_grad(), torch.cuda.stream(self._stream):
            for gather in gathers:
                buffer = torch.empty(len(gather.target), dtype=torch.uint8, device=self.device)
                torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
                    packed_views(buffer, gather), list(gather.sources)
                )
                gather.target.copy_(buffer, non_blocking=True)
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            for source in [*(source for _, source in pairs), *(one for gather in gathers for one in gather.sources)]:
                source.record_stream(self._stream)  # Its memory is not used again before the copy, even if it is freed.
            end_event = torch.cuda.Event()
            end_event.record(self._stream)
        return _CudaCopying(self.device, end_event)


class _CudaCopying:
    def __init__(self, device: torch.device, end_event: torch.cuda.Event) -> None:
        self._device, self._ended = device, end_event

    def hold(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._ended)

    def wait(self) -> None:
        self._ended.synchronize()
