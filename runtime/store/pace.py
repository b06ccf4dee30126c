"""A limit in bytes/s that several threads share, so that persisting leaves network bandwidth to training."""

import threading
import time
from collections.abc import Callable, Generator

CHUNK_BYTES = 256 << 10
"""Bytes sent at once if there is a limit."""
_BURST_S = 0.1
"""Unused bandwidth of this many seconds may be used later."""


class Pace:
    """A token bucket: `take` waits until that many bytes may be sent. `bytes_per_s` 0: no limit, no wait."""

    def __init__(
        self,
        bytes_per_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._due = clock()

    def take(self, count: int) -> None:
        """Wait until `count` bytes may be sent."""
        if not self.bytes_per_s:
            return
        with self._lock:
            now = self._clock()
            self._due = max(self._due, now - _BURST_S) + count / self.bytes_per_s
            wait = self._due - now
        if wait > 0:
            self._sleep(wait)

    def chunk_bytes(self, largest: int) -> int:
        """Bytes to send at once: `largest`, or at most CHUNK_BYTES if there is a limit."""
        return min(largest, CHUNK_BYTES) if self.bytes_per_s else largest

    def slices(self, data: memoryview, largest: int) -> Generator[memoryview]:
        """Yield `data` in chunks of at most `largest` bytes, each when it may be sent."""
        size = self.chunk_bytes(largest)
        for start in range(0, len(data), size):
            with data[start : start + size] as piece:
                self.take(len(piece))
                yield piece
