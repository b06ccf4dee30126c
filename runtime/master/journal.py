"""The journal of a job: segments `jobs/<job>/journal/000001`, each made by one `create`, under one sequence.

A segment is JSON lines: first a header (who wrote it, a nonce), then records. A master begins by claiming the next
number with its epoch and address; whoever finds a number taken by somebody else is fenced and stops.
"""

from collections.abc import Iterator
from typing import NamedTuple
from uuid import uuid4

import msgspec

from runtime.job.records import VERSION, MasterClaimed, Record
from runtime.job.state import State, fold
from runtime.store import NoSuchKey, Store, StoreError


class Fenced(RuntimeError):  # noqa: N818 (a name that reads well in `except`)
    """Another master has taken the job over."""


class JournalError(RuntimeError):
    """The journal cannot be read; the text names the segment and the line."""


class Segment(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """First line of every segment: its writer."""

    number: int
    epoch: int
    address: str
    nonce: str
    v: int = VERSION


class Master(NamedTuple):
    """Who decides for a job."""

    epoch: int
    address: str
    """host:port"""


_encode = msgspec.json.Encoder().encode
_header = msgspec.json.Decoder(Segment).decode
_record = msgspec.json.Decoder(Record).decode


def prefix(job: str) -> str:
    """Where the segments of a job lie."""
    return f"jobs/{job}/journal/"


def find_master(store: Store, job: str) -> Master | None:
    """The newest master of the job, as its newest segment names it; None where no master ever was."""
    last = max((entry.key for entry in store.list(prefix(job))), default=None)
    if last is None:
        return None
    header, _ = _parse(last, store.get(last))
    return Master(header.epoch, header.address)


def read_journal(store: Store, job: str) -> Iterator[Record]:
    """All records of a job, oldest first. Raises JournalError."""
    for key in sorted(entry.key for entry in store.list(prefix(job))):
        yield from _parse(key, store.get(key))[1]


class Journal:
    """The write end, held by one master. Blocking: called off the event loop, one call at a time."""

    def __init__(self, store: Store, job: str, epoch: int, address: str, number: int) -> None:
        self.epoch = epoch
        self.address = address
        self._store = store
        self._job = job
        self._number = number

    def append(self, records: list[Record]) -> None:
        """Write these records as the next segment; durable on return. Raises Fenced, StoreError."""
        header = Segment(self._number, self.epoch, self.address, uuid4().hex)
        if not _create(self._store, self._job, header, records):
            raise Fenced(
                f"job {self._job}: segment {self._number} was written by another master; epoch {self.epoch} ends"
            )
        self._number += 1


def claim(store: Store, job: str, address: str, now: float) -> tuple[Journal, State]:
    """Replay the journal and take the job over. Raises Fenced when another one does so at the same time."""
    while True:
        records, last = [], 0
        for key in sorted(entry.key for entry in store.list(prefix(job))):
            header, found = _parse(key, store.get(key))
            records += found
            last = header.number
        state = fold(records)
        epoch = state.epoch + 1
        claimed = MasterClaimed(time=max(now, state.time), epoch=epoch, address=address)
        header = Segment(last + 1, epoch, address, uuid4().hex)
        if _create(store, job, header, [claimed]):
            return Journal(store, job, epoch, address, last + 2), fold([claimed], state)
        other, _ = _parse(_key(job, last + 1), store.get(_key(job, last + 1)))
        if other.epoch >= epoch:
            raise Fenced(f"job {job}: the master at {other.address} took over first")
        # The master before this one was still writing; its segment is folded in, and the next number claimed.


def _key(job: str, number: int) -> str:
    return f"{prefix(job)}{number:06d}"


def _create(store: Store, job: str, header: Segment, records: list[Record]) -> bool:
    """True when the segment is ours, also if a retry below met its own success."""
    key = _key(job, header.number)
    data = b"\n".join(_encode(line) for line in (header, *records)) + b"\n"
    if store.create(key, data):
        return True
    try:
        return _parse(key, store.get(key))[0].nonce == header.nonce
    except NoSuchKey as error:
        raise StoreError(f"{key} exists and cannot be read; is the store consistent?") from error


def _parse(key: str, data: bytes) -> tuple[Segment, list[Record]]:
    first, *lines = data.splitlines()
    header, records = None, []
    try:
        header = _header(first)
        if header.v > VERSION:
            raise JournalError(f"{key} has version {header.v}, this Everstep reads up to {VERSION}; use a newer one")
        for line in lines:
            records.append(_record(line))
    except msgspec.DecodeError as error:
        raise JournalError(f"{key} line {len(records) + (2 if header else 1)}: {error}") from error
    return header, records
