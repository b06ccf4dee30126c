"""The work of a keeper: memory, digests, copies to and from the store and peers. Each task ends with an event."""

import http.client
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import msgspec

from everstep.runtime import faults
from everstep.runtime.checkpoint.errors import RestoreError, SegmentError
from everstep.runtime.checkpoint.node.core.actions import (
    AllocateSlot,
    CheckDigest,
    ComputeDigest,
    EndAllocation,
    FetchShard,
    Location,
    MakeSegment,
    PutObject,
    RequestPeerCopy,
    Work,
)
from everstep.runtime.checkpoint.node.core.events import (
    AllocationEnded,
    CheckEnded,
    DigestEnded,
    FetchEnded,
    PeerCopyEnded,
    PutEnded,
    SegmentMade,
    WorkEnd,
)
from everstep.runtime.checkpoint.node.core.peer_copies import RETRY_S, SILENT_S
from everstep.runtime.checkpoint.shard.digests import check_shard, seal
from everstep.runtime.checkpoint.shard.fetch import fetch, refusal
from everstep.runtime.checkpoint.shard.segment import NewSegment, SegmentFile, require_room
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.holdings import CopyRequest
from everstep.runtime.store import Store

PATH = "/v1/copies"
"""Asks an agent to fetch a copy: POST of a CopyRequest. It answers with a dot whenever it makes progress, at most every
half second, and at the end with HELD or the reason why it cannot."""
HELD = "held"
_PART_BYTES = 4096


class SegmentFiles:
    """The files of a node's segments, by number. Its methods are short; the caller runs one at a time."""

    def __init__(self, directory: Path, prefix: str) -> None:
        """Remove what an earlier agent of this node left."""
        self._directory, self._prefix = directory, prefix
        self._files: dict[int, SegmentFile] = {}
        self._allocating: dict[int, NewSegment] = {}
        for path in directory.glob(f"{prefix}*"):
            if re.fullmatch(r"(copy)?\d+(\.\d+)?", path.name.removeprefix(prefix)):
                path.unlink(missing_ok=True)

    def __getitem__(self, segment: int) -> SegmentFile:
        """Raises KeyError if it is gone."""
        return self._files[segment]

    def data(self, location: Location) -> memoryview:
        """These bytes. Raises KeyError if they are gone."""
        return self._files[location.segment].slot(location.slot)[: location.size]

    def make(self, action: MakeSegment) -> SegmentMade:
        """Make a file whose slots have no memory yet, if there is room for everything."""
        promised_bytes = sum(new.missing_bytes for new in self._allocating.values())
        try:
            require_room(self._directory, action.slots, action.copies, action.capacity, promised_bytes)
            new = NewSegment(self._directory / f"{self._prefix}{action.name}", action.slots, action.capacity)
        except SegmentError as error:
            return SegmentMade(action.segment, str(error))
        self._allocating[action.segment], self._files[action.segment] = new, new.segment
        return SegmentMade(action.segment)

    def allocating(self, segment: int) -> NewSegment:
        """A segment that gets its memory. Raises KeyError for any other."""
        return self._allocating[segment]

    def end_allocation(self, action: EndAllocation) -> None:
        """Allocate no more of it."""
        self._allocating.pop(action.segment).close()

    def remove(self, segment: int) -> SegmentFile:
        """Remove the file. Its memory is freed when nobody maps it any more; returns this process's mapping."""
        file = self._files.pop(segment)
        file.unlink()
        return file


class WorkThreads:
    """Does work in threads: digests one after the other in one thread, any other work in its own."""

    def __init__(
        self, files: SegmentFiles, store: Store, credentials: Credentials, on_end: Callable[[WorkEnd], None]
    ) -> None:
        """`on_end` is called in a thread with the event that a work ends with."""
        self._files, self._store, self._credentials, self._on_end = files, store, credentials, on_end
        self._digests: SimpleQueue[tuple[ComputeDigest, memoryview] | None] = SimpleQueue()
        threading.Thread(target=self._compute_digests, name="everstep-digest", daemon=True).start()

    def start(self, work: Work, on_progress: Callable[[], None]) -> None:
        """Start the work, without waiting. `on_progress` is called as the bytes of a fetch arrive."""
        match work:
            case ComputeDigest(_, location):
                self._digests.put((work, self._files.data(location)))
            case AllocateSlot(segment):
                self._start_thread("allocate", partial(_allocate, work, self._files.allocating(segment)))
            case CheckDigest(_, location):
                self._start_thread("check", partial(_check, work, self._files.data(location)))
            case FetchShard(_, location):
                self._start_thread("fetch", partial(self._fetch, work, self._files[location.segment], on_progress))
            case PutObject(_, location):
                self._start_thread("persist", partial(self._put, work, self._files.data(location)))
            case RequestPeerCopy():
                self._start_thread("copy", partial(self._request_copy, work))

    def close(self) -> None:
        """Start no more digests. Work that is under way goes on to its end."""
        self._digests.put(None)

    def _start_thread(self, name: str, work: Callable[[], WorkEnd]) -> None:
        threading.Thread(target=lambda: self._on_end(work()), name=f"everstep-{name}", daemon=True).start()

    def _compute_digests(self) -> None:
        while task := self._digests.get():
            work, data = task
            try:
                event = DigestEnded(work.work, seal(data))
            except RestoreError as error:
                event = DigestEnded(work.work, flaw=str(error))
            del task, data  # While the thread waits, a removed segment's memory must not stay mapped.
            self._on_end(event)

    def _fetch(self, work: FetchShard, file: SegmentFile, on_progress: Callable[[], None]) -> FetchEnded:
        start, size = file.slot_offset(work.location.slot), work.location.size
        if work.ticket is None:  # A worker will map it, too.
            file.populate(start, size)
        faults.point("keeper.before_fetch", iteration=work.source.iteration)
        try:
            fetch(work.source, file.slot(work.location.slot)[:size], self._store, self._credentials, on_progress)
        except RestoreError as error:
            return FetchEnded(work.work, refusal(work.source, error))
        return FetchEnded(work.work)

    def _put(self, work: PutObject, data: memoryview) -> PutEnded:
        try:
            faults.point("keeper.before_put", iteration=work.iteration)
            self._store.put(work.key, data)
        except OSError as error:
            return PutEnded(work.work, str(error))
        faults.point("keeper.after_put", iteration=work.iteration)
        return PutEnded(work.work)

    def _request_copy(self, work: RequestPeerCopy) -> PeerCopyEnded:
        try:
            return PeerCopyEnded(work.work, request_copy(work.peer, work.request, self._credentials))
        except TimeoutError:
            why = f"{work.peer} has sent nothing for {SILENT_S:g} s; it is asked again in {RETRY_S:g} s"
            return PeerCopyEnded(work.work, why, silent=True)


def _allocate(work: AllocateSlot, new: NewSegment) -> AllocationEnded:
    try:
        new.allocate_slot()
    except SegmentError as error:
        return AllocationEnded(work.segment, str(error))
    return AllocationEnded(work.segment)


def _check(work: CheckDigest, data: memoryview) -> CheckEnded:
    try:
        check_shard(data, work.digest)
    except RestoreError as error:
        return CheckEnded(work.work, str(error))
    return CheckEnded(work.work)


def request_copy(peer: str, request: CopyRequest, credentials: Credentials) -> str:
    """Wait until the peer has its copy. Returns why it has not, or an empty string. Raises TimeoutError if it sends
    nothing for SILENT_S."""
    connection = credentials.connection(peer, SILENT_S)
    try:
        headers = {**credentials.headers, "Content-Type": "application/json"}
        connection.request("POST", PATH, msgspec.json.encode(request), headers)
        answer = connection.getresponse()
        body = b""
        while part := answer.read1(_PART_BYTES):
            body = (body + part).lstrip(b".")
        text = body.decode(errors="replace")
        return "" if answer.status == http.client.OK and text == HELD else f"{peer} answered {answer.status}: {text}"
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException) as error:
        return f"{peer}: {error}"
    finally:
        connection.close()
