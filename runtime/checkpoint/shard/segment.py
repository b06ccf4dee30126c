"""A shared memory file: a control page, then slots of equal size. The agent creates it, one worker writes to it.

These are files in /dev/shm, opened and mapped directly: Python 3.11's SharedMemory unlinks segments that it only
attached to. Slots have no memory at first. The agent allocates it slot by slot (posix_fallocate), and no slot is
written before: writing to a sparse file on a full tmpfs kills the process with SIGBUS. The control page has the number
of allocated slots.
"""

import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from everstep.runtime.checkpoint.errors import SegmentError
from everstep.runtime.checkpoint.shard.huge_pages import allocate, map_shared, populate
from everstep.runtime.checkpoint.shard.sizes import PAGE, round_to_pages, segment_bytes

if TYPE_CHECKING:  # An agent imports no torch.
    from everstep.runtime.checkpoint.shard.device_copies import DeviceCopies

_MAGIC = b"EVERSTEP"
_VERSION = 3
_HEAD = struct.Struct("<8sIIQ")
"""Magic, version, slots, capacity of a slot in bytes."""
_READY_AT = 32
_READY = struct.Struct("<I")
"""Number of allocated slots; these are the first ones."""
_WANTED_AT = 36
_WANTED = struct.Struct("<I")
"""1: the agent wants each iteration staged from now on."""
_BEACON_AT = 64
_BEACON = struct.Struct("<QQdQH48s")
"""Sequence (odd during a write), iteration, Unix time, changes, length of the phase's name, the name."""
_RECORDS_AT = 256
_RECORD = struct.Struct("<QQQ")
"""Round, iteration and size in bytes of the shard in a slot, for slots that outlive their process."""
_POPULATE_BYTES = 4 << 20
"""Bytes mapped in one call: a millisecond or less."""
_POLL_S = 0.05
"""Interval for polling whether a slot is allocated."""


@dataclass(frozen=True)
class Beacon:
    """The progress of a worker."""

    iteration: int = 0
    phase: str = ""
    time: float = 0.0
    """Unix time of the last change; 0 before the first."""
    changes: int = 0
    """Number of changes by this worker."""


class SlotRecord(NamedTuple):
    """The shard that a slot keeps; of size 0: none, or it is being written."""

    round: int = 0
    iteration: int = 0
    size: int = 0


class SegmentFile:
    """A mapped segment. `slot(n)` is a writable view of one slot's bytes."""

    def __init__(self, path: Path, memory: memoryview, slots: int, capacity: int, inode: int = 0) -> None:
        self.path = path
        self.copies: DeviceCopies | None = None
        """What copies between a device and the slots, which it may have registered: so they stay from round to round,
        until the segment is let go of."""
        self._inode = inode
        self.slots = slots
        self.capacity = capacity
        self._memory = memory

    @classmethod
    def open(cls, path: Path) -> "SegmentFile":
        """Map a segment that the agent created. Raises SegmentError if the file is missing or not a segment."""
        try:
            file = os.open(path, os.O_RDWR)
        except OSError as error:
            raise SegmentError(f"{path}: {error.strerror}; the agent of this node replaced it or ended") from None
        try:
            status = os.fstat(file)
            memory = map_shared(file, status.st_size) if status.st_size >= PAGE else memoryview(bytes(PAGE))
        finally:
            os.close(file)
        magic, version, slots, capacity = _HEAD.unpack_from(memory, 0)
        if (magic, version) != (_MAGIC, _VERSION) or len(memory) != PAGE + slots * capacity:
            raise SegmentError(
                f"{path}: not a segment of version {_VERSION}; agent and worker must run the same version of Everstep"
            )
        return cls(path, memory, slots, capacity, status.st_ino)

    def is_current(self) -> bool:
        """Is the file at its path still the one that was opened here?"""
        try:
            return self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def slot(self, number: int) -> memoryview:
        """The bytes of one slot, (capacity,) uint8."""
        start = self.slot_offset(number)
        return self._memory[start : start + self.capacity]

    def bytes_at(self, offset: int, size: int) -> memoryview:
        """A range of the file. Raises SegmentError if the file ends before it."""
        if offset + size > len(self._memory):
            raise SegmentError(f"{self.path}: {size} bytes at {offset} were promised, it has {len(self._memory)}")
        return self._memory[offset : offset + size]

    def slot_offset(self, number: int) -> int:
        """First byte of a slot in the file."""
        if not 0 <= number < self.slots:
            raise IndexError(f"slot {number} of {self.slots}")
        return PAGE + number * self.capacity

    def set_beacon(self, beacon: Beacon) -> None:
        """Publish this worker's progress. There must be only one writer."""
        name = beacon.phase.encode()[:48]
        (sequence,) = struct.unpack_from("<Q", self._memory, _BEACON_AT)
        struct.pack_into("<Q", self._memory, _BEACON_AT, sequence + 1)
        fields = (beacon.iteration, beacon.time, beacon.changes, len(name), name.ljust(48, b"\0"))
        struct.pack_into("<QdQH48s", self._memory, _BEACON_AT + 8, *fields)
        struct.pack_into("<Q", self._memory, _BEACON_AT, sequence + 2)

    def read_beacon(self) -> Beacon:
        """The worker's last beacon. A read that overlaps a write is retried; after 16 attempts, as when the writer died
        in a write, the torn beacon is returned."""
        for _ in range(16):
            before, iteration, time, changes, length, name = _BEACON.unpack_from(self._memory, _BEACON_AT)
            (after,) = struct.unpack_from("<Q", self._memory, _BEACON_AT)
            if before == after and not before % 2:
                break
        return Beacon(iteration, name[:length].decode(errors="replace"), time, changes)

    def slot_record(self, slot: int) -> SlotRecord:
        """The shard in a slot, as far as its writer has noted it."""
        return SlotRecord(*_RECORD.unpack_from(self._memory, _RECORDS_AT + slot * _RECORD.size))

    def write_slot_record(self, slot: int, record: SlotRecord) -> None:
        """Note the shard in a slot. Invariant: a slot whose bytes change has size 0, so that a torn shard is never
        read."""
        _RECORD.pack_into(self._memory, _RECORDS_AT + slot * _RECORD.size, *record)

    @property
    def wants_stage(self) -> bool:
        """Whether the agent wants each iteration staged from now on."""
        return bool(_WANTED.unpack_from(self._memory, _WANTED_AT)[0])

    def want_stage(self) -> None:
        """Ask the worker for that."""
        _WANTED.pack_into(self._memory, _WANTED_AT, 1)

    @property
    def ready_slots(self) -> int:
        """Number of allocated slots; these are the first ones."""
        return _READY.unpack_from(self._memory, _READY_AT)[0]

    def populate(self, start: int, size: int) -> None:
        """Map the pages of these allocated bytes in a thread. Otherwise the first copy meets page faults, which take
        longer than the copy itself. Best effort. `start` is the first byte of a page."""
        _start_thread(partial(self._populate, start, start + size))

    def populate_slots(self) -> None:
        """Do this for all slots, each as soon as it is allocated."""

        def work() -> None:
            for slot in range(self.slots):
                while self.ready_slots <= slot:
                    if not self.is_current():
                        return
                    time.sleep(_POLL_S)
                self._populate(self.slot_offset(slot), self.slot_offset(slot) + self.capacity)

        _start_thread(work)

    def _populate(self, start: int, end: int) -> None:
        """In small steps: meanwhile the kernel lets no thread of this process map or unmap memory."""
        for at in range(start, end, _POPULATE_BYTES):
            populate(self._memory, at, min(_POPULATE_BYTES, end - at))

    def unlink(self) -> None:
        """Remove the file. Its memory is freed when the last process unmaps it."""
        self.path.unlink(missing_ok=True)


class NewSegment:
    """A segment whose slots have no memory yet; `allocate_slot` allocates the next one."""

    def __init__(self, path: Path, slots: int, capacity: int) -> None:
        """Create the file, replacing an existing one. Raises SegmentError if there is no room for the control page."""
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
        """Bytes not allocated yet."""
        return 0 if self._file.closed else max(0, self._size - os.fstat(self._file.fileno()).st_blocks * 512)

    def allocate_slot(self) -> int:
        """Allocate the next slot and return its number. Releases the interpreter lock. Raises SegmentError with the
        arithmetic if there is no room.

        Takes 0.1 s a GiB in huge pages, 0.3 s in small ones; several seconds if a virtual machine's host must supply
        the memory first.
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
        """Allocate no more."""
        self._file.close()

    def _no_room_error(self, directory: Path, error: OSError) -> SegmentError:
        return _no_room_error(
            directory, _describe_slots(self.slots, self.capacity), self._size, error.strerror or str(error)
        )


def require_room(directory: Path, slots: int, copies: int, capacity: int, promised_bytes: int) -> None:
    """Raises SegmentError with the arithmetic unless the directory has room for that many slots, the slots for
    copies of other nodes' shards, and `others` bytes that are being allocated."""
    place = os.statvfs(directory)
    size = segment_bytes(slots + copies, capacity)
    if place.f_blocks and size + promised_bytes > place.f_bavail * place.f_frsize:  # Zero blocks: no limit.
        what = _describe_slots(slots, round_to_pages(capacity)) + (
            f" and {copies} for copies of other nodes' shards" if copies else ""
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


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="everstep-populate", daemon=True).start()
