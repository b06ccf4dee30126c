"""Slots in shared memory that a process without an agent writes itself, and that outlive it.

A folder of its own holds one segment. While a process uses it, it is locked: a second process of the same job does not
get it. A slot is noted as kept when it is whole, so the next process never reads a torn one.
"""

import hashlib
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from everstep.runtime.checkpoint.errors import SegmentError
from everstep.runtime.checkpoint.shard.segment import NewSegment, SegmentFile, SlotRecord, require_room
from everstep.runtime.platform.debris import SHARED_MEMORY
from everstep.runtime.system.file_lock import open_locked

ABANDONED_S = 7 * 24 * 3600.0
"""How long the state of a killed process waits for the next process of its job; then the memory is given back."""
SLOTS = 3
"""One is being copied to the store, one keeps the newest state, one is written."""


def slots_folder(uri: str, job: str, memory: Path = SHARED_MEMORY) -> Path:
    """The folder of the slots of a job of this user and store."""
    name = hashlib.sha256(f"{os.getuid()} {uri} {job}".encode()).hexdigest()[:12]
    return memory / f"everstep-{name}-alone"


def remove_abandoned(now: float, memory: Path = SHARED_MEMORY) -> None:
    """Remove the slots of this user's jobs that no process uses, and into which none has written for `ABANDONED_S`."""
    for folder in memory.glob("everstep-*-alone"):
        with suppress(OSError):  # Somebody else's, or gone.
            status = folder.lstat()
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or now < status.st_mtime + ABANDONED_S:
                continue
            lock = open_locked(folder, wait_s=0.0)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


class OwnSlots:
    """The slots of one job. Not thread-safe, except that one thread may read a slot that is `busy`."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, with what an earlier process has left. Raises SegmentError: another process or user has
        it, or there is no such memory."""
        self._folder, self._path = folder, folder / "slots"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                raise SegmentError(f"{folder}: it belongs to another user")
            self._lock = open_locked(folder, wait_s=0.0)
        except BlockingIOError:
            raise SegmentError(f"{folder}: another process of this job uses it") from None
        except OSError as error:
            raise SegmentError(f"{folder}: {error.strerror}") from None
        self._file = self._open()
        self._replaces = False
        """Does the segment replace an earlier one, as soon as a state is whole in it?"""

    def _open(self) -> SegmentFile | None:
        try:
            return SegmentFile.open(self._path)
        except SegmentError:
            return None

    def newest(self) -> tuple[SlotRecord, memoryview] | None:
        """The newest shard and its bytes."""
        if self._file is None:
            return None
        record, slot = max((self._file.slot_record(slot), slot) for slot in range(self._file.slots))
        return (record, self._file.slot(slot)[: record.size]) if record.size else None

    def forget(self, round_: int) -> None:
        """Drop shards of this round and later ones: they are of another store, or of one that was emptied."""
        for slot in range(self._file.slots if self._file else 0):
            if self._file and self._file.slot_record(slot).round >= round_:
                self._file.write_slot_record(slot, SlotRecord())

    def begin(self, size: int, busy: int | None) -> tuple[int, memoryview]:
        """A slot to write `size` bytes to, and its memory: neither `busy` nor the newest. Raises SegmentError."""
        if self._file is None or self._file.capacity < size or self._file.slots != SLOTS:
            self._file = self._make(size)
        file = self._file
        order = sorted((slot for slot in range(file.slots) if slot != busy), key=file.slot_record)
        file.write_slot_record(order[0], SlotRecord())
        return order[0], file.slot(order[0])

    def end(self, slot: int, record: SlotRecord) -> None:
        """The slot is written."""
        assert self._file is not None
        self._file.write_slot_record(slot, record)
        os.utime(self._folder)  # Writing to mapped memory sets no time.
        if self._replaces:
            os.replace(self._file.path, self._path)
            self._file.path, self._replaces = self._path, False

    def remove(self) -> None:
        """The store has the newest state: free the memory."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._file = None

    def close(self) -> None:
        """Leave the slots to the next process."""
        os.close(self._lock)

    def _make(self, size: int) -> SegmentFile:
        require_room(self._folder, SLOTS, 0, size, 0)
        segment = NewSegment(self._folder / "new", SLOTS, size)
        try:
            for _ in range(SLOTS):
                segment.allocate_slot()
        finally:
            segment.close()
        self._replaces = True
        return segment.segment
