"""torch.cuda as far as Everstep calls it, on the CPU: with torch's arguments, and its rules for threads and devices.

Tensors for a device are made on the CPU, and count as on the device `own`. Everything is done at once. What it knows:
which devices have a context, what is registered, and what streams and events were told.
"""

import inspect
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._device import _device_constructors

REAL = SimpleNamespace(Stream=torch.cuda.Stream, Event=torch.cuda.Event)
_MAKERS = ("empty", "full", "zeros", "randn", "arange")
_ERRORS = {0: "no error", 2: "out of memory"}


class StandIn:
    """The devices of one test."""

    def __init__(self, own: int = 1, count: int = 2) -> None:
        self.own, self.count = own, count
        self.contexts = set[int]()
        """Devices on which this process has a context."""
        self.registered: dict[int, int] = {}
        """Address -> bytes."""
        self.refusal = 0
        """What cudaHostRegister answers."""
        self.most_registered = 1000
        """As many parts; of more it answers that there is no memory."""
        self.keeps_registered = False
        """Does cudaHostUnregister refuse?"""
        self.log: list[str] = []
        """What was told to streams and events, and what is registered no more, in order."""
        self.free_bytes = 1 << 30
        self.captures = False
        """Is a CUDA graph being captured?"""
        self._thread = threading.local()

    @property
    def current(self) -> int:
        """The current device of this thread."""
        return getattr(self._thread, "device", 0)

    def index_of(self, device: Any) -> int:
        """A device's number; -1 for None."""
        if isinstance(device, str):
            device = torch.device(device)
        if isinstance(device, torch.device):
            return self.own if device.type == "cpu" or device.index is None else device.index
        return -1 if device is None else device

    def use(self) -> None:
        """As calls of the runtime do: they make a context on the current device."""
        self.contexts.add(self.current)

    def set_device(self, index: int) -> None:
        """As cudaSetDevice, which makes a context (CUDA 12)."""
        self._thread.device = index
        self.use()

    def stream_of(self, index: int) -> "Stream":
        """The current stream of a device in this thread."""
        streams = self._thread.__dict__.setdefault("streams", {})
        return streams.get(index) or Stream(self, torch.device("cuda", index), "training")

    def set_stream(self, stream: "Stream") -> None:
        """As torch.cuda.set_stream, which also selects the stream's device."""
        if self.current != stream.device.index:
            self.set_device(stream.device.index)
        self._thread.__dict__.setdefault("streams", {})[stream.device.index] = stream

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """As torch.cuda.device: it returns only in name to a device that has no context."""
        before, index = self.current, self.index_of(device)
        if index >= 0:
            self.set_device(index)
        yield
        self._thread.device = before

    @contextmanager
    def stream(self, stream: "Stream") -> Iterator[None]:
        """As torch.cuda.stream."""
        before, there = self.stream_of(self.current), self.stream_of(stream.device.index)
        self.set_stream(stream)
        yield
        self.set_stream(there)
        self.set_stream(before)

    def host_register(self, address: int, size: int, flags: int) -> "_Error":
        self.use()
        assert flags in (0, 1)
        refusal = self.refusal or 2 * (len(self.registered) >= self.most_registered)
        if not refusal:
            assert address not in self.registered
            self.registered[address] = size
        return _Error(refusal)

    def host_unregister(self, address: int) -> "_Error":
        self.use()
        if self.keeps_registered:
            return _Error(2)
        self.log.append("unregistered")
        del self.registered[address]
        return _Error(0)


class _Error:
    """As pybind11 gives cudaError_t: no number, but it has one."""

    def __init__(self, code: int) -> None:
        self._code = code

    def __int__(self) -> int:
        return self._code


class Stream:
    """One stream."""

    def __init__(self, stand: StandIn, device: Any = None, name: str = "copies", **more: Any) -> None:
        if more:
            inspect.signature(REAL.Stream.__new__).bind(REAL.Stream, **more)
        index = stand.index_of(device)
        self._stand, self.name, self.priority = stand, name, more.get("priority", 0)
        self.device = torch.device("cuda", index if index >= 0 else stand.current)

    def wait_event(self, event: "Event") -> None:
        event.wait(self)

    def wait_stream(self, stream: "Stream") -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: "Event | None" = None) -> "Event":
        recorded = event or Event(self._stand)
        recorded.record(self)
        return recorded

    def synchronize(self) -> None:
        self._stand.log.append(f"{self.name} ends")
        self._stand.use()


class Event:
    """One event."""

    def __init__(self, stand: StandIn, *arguments: Any, **more: Any) -> None:
        bound = inspect.signature(REAL.Event.__new__).bind(REAL.Event, *arguments, **more)
        self._stand, self._timing, self._at = stand, bool(bound.arguments.get("enable_timing")), 0.0

    def record(self, stream: Stream | None = None) -> None:
        place = stream or self._stand.stream_of(self._stand.current)
        self._stand.log.append(f"{place.name} records")
        self._at = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        place = stream or self._stand.stream_of(self._stand.current)
        self._stand.log.append(f"{place.name} waits")

    def synchronize(self) -> None:
        self._stand.use()

    def query(self) -> bool:
        self._stand.use()
        return True

    def elapsed_time(self, end_event: "Event") -> float:
        assert self._timing
        assert end_event._timing
        return max(1e-6, 1000 * (end_event._at - self._at))


def _on_cpu(make: Callable[..., torch.Tensor], stand: StandIn) -> Callable[..., torch.Tensor]:
    def on_cpu(*arguments: Any, pin_memory: bool = False, device: Any = None, **more: Any) -> torch.Tensor:
        if device is not None:
            shape = arguments[0] if arguments and isinstance(arguments[0], int | tuple) else 0
            count = shape if isinstance(shape, int) else math.prod(shape)
            size = count * (more.get("dtype") or torch.float32).itemsize
            if size > stand.free_bytes:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size >> 30} GiB.")
            more["device"] = "cpu"
        return make(*arguments, **more)

    return on_cpu


def stand_in(patch: pytest.MonkeyPatch, own: int = 1, count: int = 2) -> StandIn:
    """Replace torch.cuda in this process until `patch` is undone."""
    stand = StandIn(own, count)
    runtime = SimpleNamespace(cudaHostRegister=stand.host_register, cudaHostUnregister=stand.host_unregister,
                              cudaError=int, cudaGetErrorString=_ERRORS.__getitem__)  # fmt: skip
    replaced = {
        "Stream": lambda device=None, **more: Stream(stand, device, **more),
        "Event": lambda *arguments, **more: Event(stand, *arguments, **more),
        "device": stand.device,
        "stream": stand.stream,
        "current_stream": lambda device=None: stand.stream_of(
            stand.index_of(device) if device is not None else stand.current
        ),
        "cudart": lambda: runtime,
        "synchronize": lambda device=None: stand.use(),
        "empty_cache": lambda: None,
        "mem_get_info": lambda device=None: (stand.free_bytes, stand.free_bytes),
        "device_count": lambda: stand.count,
        "is_current_stream_capturing": lambda: stand.captures,
    }
    for name, replacement in replaced.items():
        patch.setattr(torch.cuda, name, replacement)
    _device_constructors()  # Torch looks once, and must not find what is replaced here.
    for name in _MAKERS:
        patch.setattr(torch, name, _on_cpu(getattr(torch, name), stand))

    def record_stream(_: torch.Tensor, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        stand.log.append(f"{stream.name} uses")

    patch.setattr(torch.Tensor, "record_stream", record_stream)
    patch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.data_ptr() in stand.registered)
    return stand
