"""A shared memory file: a control page, then slots of equal size. Made by the agent, written by one worker.

Our own files in /dev/shm by open and mmap: Python 3.11's SharedMemory unlinks what it only attached to. Slots have no
memory at first and get it one after the other, and nobody is given one to write to before (posix_fallocate): writing to
a sparse file of a full tmpfs ends a process with SIGBUS. The control page tells how many have it.
"""

import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from everstep.runtime.checkpoint.errors import SegmentError
from everstep.runtime.checkpoint.shard.huge_pages import allocate, map_shared, populate

PAGE = 4096
_MAGIC = b"EVERSTEP"
_VERSION = 3
_HEAD = struct.Struct("<8sIIQ")
"""Magic, version, slots, capacity of a slot in bytes."""
_READY_AT = 32
_READY = struct.Struct("<I")
"""Slots that have their memory, the first ones."""
_BEACON_AT = 64
_BEACON = struct.Struct("<QQdQH48s")
"""Sequence (odd while it is being written), iteration, Unix time, changes, length of the phase's name, the name."""
_POPULATE_BYTES = 4 << 20
"""Bytes that are mapped in one call: a millisecond or less."""
_POLL_S = 0.05
"""Between two looks whether a slot has its memory."""


@dataclass(frozen=True)
class Beacon:
    """How far a worker says it is."""

    iteration: int = 0
    phase: str = ""
    time: float = 0.0
    """Unix time of the last change; 0 before the first."""
    changes: int = 0
    """How often this worker has changed it."""


class SegmentFile:
    """A mapped segment. `slot(n)` is a writable view of one slot's bytes."""

    def __init__(self, path: Path, memory: memoryview, slots: int, capacity: int, inode: int = 0) -> None:
        self.path = path
        self._inode = inode
        self.slots = slots
        self.capacity = capacity
        self._memory = memory

    @classmethod
    def open(cls, path: Path) -> "SegmentFile":
        """Map a segment that the agent made. Raises SegmentError when it is none."""
        try:
            file = os.open(path, os.O_RDWR)
        except OSError as error:
            raise SegmentError(f"{path}: {error.strerror}; the agent of this node made another or ended") from None
        try:
            status = os.fstat(file)
            memory = map_shared(file, status.st_size) if status.st_size >= PAGE else memoryview(bytes(PAGE))
        finally:
            os.close(file)
        magic, version, slots, capacity = _HEAD.unpack_from(memory, 0)
        if (magic, version) != (_MAGIC, _VERSION) or len(memory) != PAGE + slots * capacity:
            raise SegmentError(
                f"{path}: not a segment of version {_VERSION}; agent and worker must be the same Everstep"
            )
        return cls(path, memory, slots, capacity, status.st_ino)

    def is_current(self) -> bool:
        """Is it, opened here, still the file of its path?"""
        try:
            return self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def slot(self, number: int) -> memoryview:
        """The bytes of one slot, (capacity,) uint8."""
        start = self.slot_offset(number)
        return self._memory[start : start + self.capacity]

    def bytes_at(self, offset: int, size: int) -> memoryview:
        """Any stretch of the file. Raises SegmentError when it ends before."""
        if offset + size > len(self._memory):
            raise SegmentError(f"{self.path}: {size} bytes at {offset} were promised, it has {len(self._memory)}")
        return self._memory[offset : offset + size]

    def slot_offset(self, number: int) -> int:
        """Where a slot begins in the file."""
        if not 0 <= number < self.slots:
            raise IndexError(f"slot {number} of {self.slots}")
        return PAGE + number * self.capacity

    def set_beacon(self, beacon: Beacon) -> None:
        """Say how far this worker is. One writer."""
        name = beacon.phase.encode()[:48]
        (sequence,) = struct.unpack_from("<Q", self._memory, _BEACON_AT)
        struct.pack_into("<Q", self._memory, _BEACON_AT, sequence + 1)
        shown = (beacon.iteration, beacon.time, beacon.changes, len(name), name.ljust(48, b"\0"))
        struct.pack_into("<QdQH48s", self._memory, _BEACON_AT + 8, *shown)
        struct.pack_into("<Q", self._memory, _BEACON_AT, sequence + 2)

    def read_beacon(self) -> Beacon:
        """What the worker said last. A reading that met a change is read again; a dead writer's half one is given."""
        for _ in range(16):
            before, iteration, time, changes, length, name = _BEACON.unpack_from(self._memory, _BEACON_AT)
            (after,) = struct.unpack_from("<Q", self._memory, _BEACON_AT)
            if before == after and not before % 2:
                break
        return Beacon(iteration, name[:length].decode(errors="replace"), time, changes)

    @property
    def ready_slots(self) -> int:
        """Slots that have their memory: the first ones."""
        return _READY.unpack_from(self._memory, _READY_AT)[0]

    def populate(self, start: int, size: int) -> None:
        """Map the pages of these bytes, which have their memory, in a thread: who copies them first then meets no page
        faults, which take longer than the copy. Best effort. `start` is a page's first byte."""
        _start_thread(partial(self._populate, start, start + size))

    def populate_slots(self) -> None:
        """The same for all slots, each as soon as it has its memory."""

        def work() -> None:
            for slot in range(self.slots):
                while self.ready_slots <= slot:
                    if not self.is_current():
                        return
                    time.sleep(_POLL_S)
                self._populate(self.slot_offset(slot), self.slot_offset(slot) + self.capacity)

        _start_thread(work)

    def _populate(self, start: int, end: int) -> None:
        """A little at a time: the kernel lets nobody in this process map or unmap memory meanwhile."""
        for at in range(start, end, _POPULATE_BYTES):
            populate(self._memory, at, min(_POPULATE_BYTES, end - at))

    def unlink(self) -> None:
        """Remove the file; the memory goes when the last process that maps it lets go."""
        self.path.unlink(missing_ok=True)


class NewSegment:
    """A segment's file whose slots have no memory yet; `allocate` gives it to one after the other."""

    def __init__(self, path: Path, slots: int, capacity: int) -> None:
        """Makes the file, replacing one of that name. Raises SegmentError: no room for the control page."""
        self.slots, self.capacity = slots, round_to_pages(capacity)
        self._size = segment_bytes(slots, capacity)
        path.unlink(missing_ok=True)
        self._file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b", 0)  # noqa: SIM115
        try:
            self._file.truncate(self._size)
            os.posix_fallocate(self._file.fileno(), 0, PAGE)
            memory = map_shared(self._file.fileno(), self._size)
        except OSError as error:
            self.close()
            path.unlink()
            raise self._no_room_error(path.parent, error) from error
        _HEAD.pack_into(memory, 0, _MAGIC, _VERSION, self.slots, self.capacity)
        self.segment = SegmentFile(path, memory, self.slots, self.capacity, os.fstat(self._file.fileno()).st_ino)
        self._memory = memory

    @property
    def missing_bytes(self) -> int:
        """Bytes that it has not got yet."""
        return 0 if self._file.closed else max(0, self._size - os.fstat(self._file.fileno()).st_blocks * 512)

    def allocate_slot(self) -> int:
        """Memory for the next slot; returns its number. Other threads run meanwhile. Raises SegmentError with the
        arithmetic when there is none.

        Takes 0.1 s a GiB, of small pages 0.3 s; several where a virtual machine's host has to bring the memory first.
        """
        slot = self.segment.ready_slots
        start = self.segment.slot_offset(slot)
        try:
            allocate(self._file.fileno(), self._memory, start, start + self.capacity)
        except OSError as error:
            raise self._no_room_error(self.segment.path.parent, error) from error
        _READY.pack_into(self._memory, _READY_AT, slot + 1)
        return slot

    def close(self) -> None:
        """It gets no more."""
        self._file.close()

    def _no_room_error(self, directory: Path, error: OSError) -> SegmentError:
        return _no_room_error(
            directory, _describe_slots(self.slots, self.capacity), self._size, error.strerror or str(error)
        )


def require_room(directory: Path, slots: int, copies: int, capacity: int, others: int) -> None:
    """Raises SegmentError with the arithmetic when that many slots, slots for a peer's copies, and `others` bytes that
    are being allocated cannot all be had there."""
    place = os.statvfs(directory)
    size = segment_bytes(slots + copies, capacity)
    if place.f_blocks and size + others > place.f_bavail * place.f_frsize:  # No blocks at all: without a limit.
        what = _describe_slots(slots, round_to_pages(capacity)) + (
            f" and {copies} for copies of a peer's shard" if copies else ""
        )
        raise _no_room_error(directory, what, size, "No space left on device")


def _describe_slots(slots: int, capacity: int) -> str:
    return f"{slots} slots of {capacity / 1e6:.1f} MB"


def _no_room_error(directory: Path, what: str, size: int, why: str) -> SegmentError:
    place = os.statvfs(directory)
    free = place.f_bavail * place.f_frsize
    return SegmentError(
        f"{directory}: {what} need {size / 1e6:.1f} MB, {free / 1e6:.1f} MB are free ({why}); "
        f"enlarge {directory} (in a pod: a memory-backed emptyDir with a larger sizeLimit) or run fewer workers a node"
    )


def segment_bytes(slots: int, capacity: int) -> int:
    """Of a file with so many slots for states of `capacity` bytes."""
    return PAGE + slots * round_to_pages(capacity)


def round_to_pages(size: int) -> int:
    """Up to whole pages."""
    return -(-size // PAGE) * PAGE


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="everstep-populate", daemon=True).start()
