"""What a keeper has done in threads: memory, digests, copies to and from the store and peers. Each work ends with its
event, and touches no decision."""

import hashlib
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
from everstep.runtime.checkpoint.node.core.events import (
    Allocate,
    Allocated,
    AskPeer,
    Check,
    Checked,
    EndAllocation,
    Fetch,
    Fetched,
    Made,
    MakeSegment,
    NotAllocated,
    NotFetched,
    NotMade,
    PeerAnswered,
    Put,
    PutObject,
    Seal,
    Sealed,
    Where,
    Work,
    WorkEnd,
)
from everstep.runtime.checkpoint.node.core.peer_copies import AGAIN_S, SILENT_S
from everstep.runtime.checkpoint.shard.digests import check_shard, seal
from everstep.runtime.checkpoint.shard.fetch import fetch, refusal
from everstep.runtime.checkpoint.shard.segment import NewSegment, SegmentFile, require_room
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.messages import Holding
from everstep.runtime.store import Store

PATH = "/v1/copies"
"""Where an agent is asked to fetch a copy: POST of the Holding. It answers with a dot whenever it has got on, at most
every half second, and at the end with HELD or why it cannot."""
HELD = "held"
_PART = 4096


def segment_prefix(job: str, node: str) -> str:
    """What the names of a node's shared memory begin with; a local rank follows."""
    return f"everstep-{hashlib.sha256(job.encode()).hexdigest()[:12]}-{node}-"


class SegmentFiles:
    """The files of a node's segments, by number. Its methods are short; the caller sees to it that one runs at a
    time."""

    def __init__(self, directory: Path, prefix: str) -> None:
        """Removes what an earlier incarnation of this node left."""
        self._directory, self._prefix = directory, prefix
        self._files: dict[int, SegmentFile] = {}
        self._making: dict[int, NewSegment] = {}
        """Those whose memory is being allocated."""
        for path in directory.glob(f"{prefix}*"):
            if re.fullmatch(r"(copy)?\d+(\.\d+)?", path.name.removeprefix(prefix)):
                path.unlink(missing_ok=True)

    def __getitem__(self, segment: int) -> SegmentFile:
        """Raises KeyError when it is gone."""
        return self._files[segment]

    def data(self, where: Where) -> memoryview:
        """These bytes. Raises KeyError when they are gone."""
        return self._files[where.segment].slot(where.slot)[: where.size]

    def make(self, action: MakeSegment) -> Made | NotMade:
        """A file whose slots have no memory yet, if all that is wanted can be had."""
        coming = sum(new.missing_bytes for new in self._making.values())
        try:
            require_room(self._directory, action.slots, action.copies, action.capacity, coming)
            new = NewSegment(self._directory / f"{self._prefix}{action.name}", action.slots, action.capacity)
        except SegmentError as error:
            return NotMade(action.segment, str(error))
        self._making[action.segment], self._files[action.segment] = new, new.segment
        return Made(action.segment)

    def coming(self, segment: int) -> NewSegment:
        """One whose memory is being allocated."""
        return self._making[segment]

    def end_allocation(self, action: EndAllocation) -> None:
        """It gets no more memory."""
        self._making.pop(action.segment).close()

    def remove(self, segment: int) -> None:
        """The file goes; its memory when nobody maps it any more."""
        self._files.pop(segment).unlink()


class Workers:
    """Does works in threads: digests one after the other in one, each other one in its own."""

    def __init__(
        self, files: SegmentFiles, store: Store, credentials: Credentials, end: Callable[[WorkEnd], None]
    ) -> None:
        """`end` is called in a thread with the event that each work ends with."""
        self._files, self._store, self._credentials, self._end = files, store, credentials, end
        self._seals: SimpleQueue[tuple[Seal, memoryview] | None] = SimpleQueue()
        threading.Thread(target=self._seal_all, name="everstep-digest", daemon=True).start()

    def do(self, work: Work, came: Callable[[], None]) -> None:
        """Begin it; `came` is called as bytes come that somebody waits for. Raises nothing, and does not wait."""
        match work:
            case Seal(_, where):
                self._seals.put((work, self._files.data(where)))
            case Allocate(segment):
                self._in_thread("allocate", partial(_allocate, work, self._files.coming(segment)))
            case Check(_, where):
                self._in_thread("check", partial(_check, work, self._files.data(where)))
            case Fetch(_, where):
                self._in_thread("fetch", partial(self._fetch, work, self._files[where.segment], came))
            case PutObject(_, where):
                self._in_thread("persist", partial(self._put, work, self._files.data(where)))
            case AskPeer():
                self._in_thread("copy", partial(self._ask, work))

    def close(self) -> None:
        """What is under way goes on to its end."""
        self._seals.put(None)

    def _in_thread(self, name: str, work: Callable[[], WorkEnd]) -> None:
        threading.Thread(target=lambda: self._end(work()), name=f"everstep-{name}", daemon=True).start()

    def _seal_all(self) -> None:
        while task := self._seals.get():
            work, data = task
            try:
                event = Sealed(work.work, seal(data))
            except RestoreError as error:
                event = Sealed(work.work, "", str(error))
            del task, data  # A segment that is gone keeps no memory while nothing is to be done.
            self._end(event)

    def _fetch(self, work: Fetch, file: SegmentFile, came: Callable[[], None]) -> Fetched | NotFetched:
        start, size = file.slot_offset(work.where.slot), work.where.size
        if work.ticket is None:  # A worker will map it too.
            file.populate(start, size)
        try:
            fetch(work.source, file.slot(work.where.slot)[:size], self._store, self._credentials, came)
        except RestoreError as error:
            return NotFetched(work.work, refusal(work.source, error))
        return Fetched(work.work)

    def _put(self, work: PutObject, data: memoryview) -> Put:
        try:
            faults.point("keeper.before_put", iteration=work.iteration)
            self._store.put(work.key, data)
        except OSError as error:
            return Put(work.work, str(error))
        faults.point("keeper.after_put", iteration=work.iteration)
        return Put(work.work, "")

    def _ask(self, work: AskPeer) -> PeerAnswered:
        try:
            return PeerAnswered(work.work, ask_peer(work.peer, work.holding, self._credentials))
        except TimeoutError:
            why = f"{work.peer} has told nothing for {SILENT_S:g} s; it is asked again in {AGAIN_S:g} s"
            return PeerAnswered(work.work, why, silent=True)


def _allocate(work: Allocate, new: NewSegment) -> Allocated | NotAllocated:
    try:
        return Allocated(work.segment, new.allocate_slot())
    except SegmentError as error:
        return NotAllocated(work.segment, str(error))


def _check(work: Check, data: memoryview) -> Checked:
    try:
        check_shard(data, work.digest)
    except RestoreError as error:
        return Checked(work.work, str(error))
    return Checked(work.work, "")


def ask_peer(peer: str, holding: Holding, credentials: Credentials) -> str:
    """Returns when the peer holds the copy; the reason when it cannot. Raises TimeoutError for a silent one."""
    connection = credentials.connection(peer, SILENT_S)
    try:
        headers = {**credentials.headers, "Content-Type": "application/json"}
        connection.request("POST", PATH, msgspec.json.encode(holding), headers)
        answer = connection.getresponse()
        told = b""
        while part := answer.read1(_PART):
            told = (told + part).lstrip(b".")
        text = told.decode(errors="replace")
        return "" if answer.status == http.client.OK and text == HELD else f"{peer} answered {answer.status}: {text}"
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException) as error:
        return f"{peer}: {error}"
    finally:
        connection.close()
