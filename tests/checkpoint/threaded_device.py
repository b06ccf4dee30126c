"""A device of threads: what is queued on it runs later, in order, at times of its own, as on a real one."""

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from everstep.runtime.checkpoint.shard.device_copies import Gather, Pairs, Piece, as_bytes, packed_views


class Moment(threading.Event):
    """Set when a stream gets there."""

    at = 0.0
    """By the device's clock, once it is set."""

    def reach(self, now: float) -> None:
        self.at = now
        self.set()


class Stream:
    """Runs what is queued, in order, in a thread."""

    def __init__(self, chance: random.Random, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._chance = chance
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def queue(self, work: Callable[[], None]) -> None:
        """Run it after all that was queued before."""
        self._work.put(work)

    def record(self) -> Moment:
        """Set when all that was queued before has run."""
        moment = Moment()
        self.queue(lambda: moment.reach(self.clock()))
        return moment

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

    With `trains_here` it is the caller's thread that trains, and `hold` blocks it. With `work` the copies of each save
    do that, too: a test may let them take some time of a `clock` of its own.
    """

    device = torch.device("cpu")
    upload_threads = 2

    def __init__(
        self,
        seed: int,
        trains_here: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        work: Callable[[], None] = lambda: None,
    ) -> None:
        self._trains_here, self.clock, self._work = trains_here, clock, work
        self.compute, self.copies = (Stream(random.Random(seed + number), clock) for number in range(2))
        self.current = self.compute
        self.registered: list[int] = []
        self.records = False
        self.holds: list[tuple[Moment, Moment]] = []
        """Before and after each."""

    def is_recording(self) -> bool:
        return self.records

    def register(self, memory: memoryview, is_cancelled: Callable[[], bool] = lambda: False) -> bool:
        self.registered.append(len(memory))
        return True

    def begin(self, pairs: Pairs, gathers: Sequence[Gather], at_once: Pairs = ()) -> "_Copying":
        for target, source in at_once:
            _copy(target, source)  # What is not a step is done by the caller, at once.
        self.copies.wait_for(self.current.record())
        began = self.copies.record()
        for gather in gathers:
            self.copies.queue(lambda gather=gather: _copy_gathered(gather))
        for target, source in pairs:
            self.copies.queue(lambda target=target, source=source: _copy(target, source))
        self.copies.queue(self._work)
        return _Copying(self, began, self.copies.record())

    def hold(self, ended: Moment) -> tuple[Moment, Moment]:
        """Let what trains wait for a moment. Returns when it came there, and went on."""
        if self._trains_here:
            before, after = Moment(), Moment()
            before.reach(self.clock())
            _wait(ended)
            after.reach(self.clock())
        else:
            before = self.current.record()
            self.current.wait_for(ended)
            after = self.current.record()
        self.holds.append((before, after))
        return before, after

    def mark(self) -> "_Mark":
        return _Mark(self, self.current.record())

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """What the caller queues within the block is that stream's."""
        before, self.current = self.current, stream
        yield
        self.current = before

    def wait(self) -> None:
        _wait(self.copies.record())

    def wait_for_all(self) -> None:
        """Until all that is queued has run."""
        _wait(self.compute.record())
        self.wait()

    def uploads(self) -> "_Uploads":
        self.copies.wait_for(self.compute.record())
        return _Uploads(self.copies)

    def end(self) -> None:
        """Wait for both streams."""
        for stream in (self.compute, self.copies):
            stream.end()


class _Copying:
    def __init__(self, device: ThreadedDevice, began: Moment, ended: Moment) -> None:
        self._device, self._began, self._ended = device, began, ended
        self._holds: list[tuple[Moment, Moment]] = []

    def hold(self) -> None:
        self._holds.append(self._device.hold(self._ended))

    def wait(self) -> None:
        _wait(self._ended)

    def copy_s(self) -> float:
        return self._ended.at - self._began.at

    def held_s(self) -> float | None:
        if not all(after.is_set() for _, after in self._holds):
            return None
        return max((after.at - before.at for before, after in self._holds), default=0.0)


class _Mark:
    def __init__(self, device: ThreadedDevice, reached: Moment) -> None:
        self._device, self._reached = device, reached

    def idle_s(self) -> float:
        return self._device.clock() - self._reached.at if self._reached.is_set() else 0.0


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
