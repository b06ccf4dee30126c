"""A device of threads: what is queued on it runs later, in order, at times of its own, as on a real one."""

import queue
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from everstep.runtime.checkpoint.shard.device_copies import Gather, Pairs, Piece, as_bytes, packed_views


class Stream:
    """Runs what is queued, in order, in a thread."""

    def __init__(self, chance: random.Random) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._chance = chance
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def queue(self, work: Callable[[], None]) -> None:
        """Run it after all that was queued before."""
        self._work.put(work)

    def record(self) -> threading.Event:
        """An event that is set when all that was queued before has run."""
        event = threading.Event()
        self.queue(event.set)
        return event

    def wait_for(self, event: threading.Event) -> None:
        """Run nothing that is queued later before the event is set."""
        self.queue(lambda: _wait(event))

    def end(self) -> None:
        """Wait for all."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            for _ in range(self._chance.randrange(4)):
                threading.Event().wait(self._chance.random() * 0.0003)
            work()


def _wait(event: threading.Event) -> None:
    assert event.wait(30.0)


class ThreadedDevice:
    """Implements `DeviceCopies` for tensors of this process: `compute` is the stream that trains, unless another one is
    made the `current` one.

    With `trains_here` it is the caller's thread that trains, and `hold` blocks it.
    """

    device = torch.device("cpu")
    upload_threads = 2

    def __init__(self, seed: int, trains_here: bool = False) -> None:
        self._trains_here = trains_here
        self.compute, self._copies = (Stream(random.Random(seed + number)) for number in range(2))
        self.current = self.compute
        self.registered: list[int] = []
        self.records = False

    def is_recording(self) -> bool:
        return self.records

    def register(self, memory: memoryview, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        self.registered.append(len(memory))

    def begin(self, pairs: Pairs, gathers: Sequence[Gather], at_once: Pairs = ()) -> "_Copying":
        for target, source in at_once:
            _copy(target, source)  # What is not a step is done by the caller, at once.
        self._copies.wait_for(self.current.record())
        for gather in gathers:
            self._copies.queue(lambda gather=gather: _copy_gathered(gather))
        for target, source in pairs:
            self._copies.queue(lambda target=target, source=source: _copy(target, source))
        return _Copying(None if self._trains_here else self, self._copies.record())

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """What the caller queues within the block is that stream's."""
        before, self.current = self.current, stream
        yield
        self.current = before

    def wait(self) -> None:
        _wait(self._copies.record())

    def wait_for_all(self) -> None:
        """Until all that is queued has run."""
        _wait(self.compute.record())
        self.wait()

    def uploads(self) -> "_Uploads":
        self._copies.wait_for(self.compute.record())
        return _Uploads(self._copies)

    def end(self) -> None:
        """Wait for both streams."""
        for stream in (self.compute, self._copies):
            stream.end()


class _Copying:
    def __init__(self, device: ThreadedDevice | None, end_flag: threading.Event) -> None:
        self._device, self._ended = device, end_flag

    def hold(self) -> None:
        if self._device is None:
            self.wait()
        else:
            self._device.current.wait_for(self._ended)

    def wait(self) -> None:
        _wait(self._ended)


class _Uploads:
    def __init__(self, copies: Stream) -> None:
        self._copies = copies

    def add(self, block: memoryview, pieces: Sequence[Piece]) -> None:
        source = torch.frombuffer(block, dtype=torch.uint8)
        for offset, target in pieces:
            here = source[offset : offset + len(target)]
            self._copies.queue(lambda target=target, here=here: _copy(target, here))

    def wait(self) -> None:
        _wait(self._copies.record())


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch.no_grad():
        target.copy_(source)


def _copy_gathered(gather: Gather) -> None:
    packed = torch.empty(len(gather.target), dtype=torch.uint8)
    with torch.no_grad():
        for part, source in zip(packed_views(packed, gather), gather.sources, strict=True):
            part.copy_(as_bytes(source))
        gather.target.copy_(packed)
