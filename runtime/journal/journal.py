"""The journal of a job: a sequence of segments `jobs/<job>/journal/000001`, each written by one `create`.

A segment is JSON lines: a header (its writer, a nonce), then records. A master starts by claiming the next number with
its epoch and address. A master that finds its number taken by another is fenced and stops. `segments` stores old
segments.
"""

from collections.abc import Iterator
from typing import NamedTuple
from uuid import uuid4

import msgspec

from everstep.runtime import faults
from everstep.runtime.job.fold import fold
from everstep.runtime.job.records import VERSION, MasterClaimed, Record
from everstep.runtime.job.state import State
from everstep.runtime.journal import segments, snapshots
from everstep.runtime.journal.segments import JournalError, Segment
from everstep.runtime.store import NoSuchKey, Store, StoreError

__all__ = [
    "Fenced",
    "Journal",
    "JournalError",
    "Master",
    "claim",
    "find_master",
    "is_stood_in_for",
    "read_journal",
    "read_state",
]


class Fenced(RuntimeError):  # noqa: N818 (a name that reads well in `except`)
    """Another master has taken the job over."""


class Master(NamedTuple):
    """The master of a job."""

    epoch: int
    address: str
    """host:port"""


_encode = msgspec.json.Encoder().encode
_header = msgspec.json.Decoder(Segment).decode
_record = msgspec.json.Decoder(Record).decode


def find_master(store: Store, job: str) -> Master | None:
    """The newest master of the job, as its newest segment names it; None if the job never had one."""
    header = _newest_header(store, job)
    return Master(header.epoch, header.address) if header else None


def is_stood_in_for(store: Store, job: str) -> bool:
    """Whether the newest master is an agent's, which stands in for the job's own."""
    header = _newest_header(store, job)
    return header is not None and header.stands_in


def _newest_header(store: Store, job: str) -> Segment | None:
    archived_to = 0
    while numbers := segments.listed_numbers(store, job):
        try:
            header, _ = _read(store, job, numbers[-1])
        except NoSuchKey as error:  # It was archived since: there is a newer one.
            if archived_to == numbers[-1]:
                raise _unreadable_error(job, archived_to) from error
            archived_to = numbers[-1]
        else:
            return header
    return None


def read_journal(store: Store, job: str) -> Iterator[Record]:
    """All records of a job, oldest first. Raises JournalError."""
    for body in segments.read(store, job):
        yield from _parse(body.key, body.data)[1]


def read_state(store: Store, job: str) -> State:
    """The state of a job, replayed from the newest snapshot on. Raises JournalError."""
    return _replay(store, job)[1]


class ReplayCost(NamedTuple):
    """What a replay reads after the newest snapshot."""

    segments: int
    records: int


class Draft(NamedTuple):
    """A segment to be written. Its bytes are the same on every attempt."""

    number: int
    nonce: str
    data: bytes


class Journal:
    """The write end of a journal, owned by one master. Blocking: call it in a thread, one `write` at a time."""

    def __init__(self, store: Store, job: str, claim: Segment, replay_cost: ReplayCost) -> None:
        """`claim` is the master's first segment, which is written; `replayed` is what a replay up to it reads."""
        self.epoch = claim.epoch
        self.address = claim.address
        self.replayed = replay_cost
        self._store = store
        self._job = job
        self._claim = claim
        self._number = claim.number + 1

    def draft(self, records: list[Record]) -> Draft:
        """The next segment, with these records."""
        return _draft(msgspec.structs.replace(self._claim, number=self._number, nonce=uuid4().hex), records)

    def write(self, draft: Draft) -> None:
        """Write a segment; it is durable on return. Raises Fenced, StoreError. After StoreError the segment may or may
        not be there: write the same draft again."""
        try:
            ours = _create(self._store, self._job, draft)
        except NoSuchKey as error:
            raise _unreadable_error(self._job, draft.number) from error
        if not ours:
            raise self._fenced_error(draft.number)
        self._number = draft.number + 1

    def confirm(self) -> None:
        """Raise Fenced if another master has written the segment after this one's last."""
        number = self._number
        try:
            header, _ = _read(self._store, self._job, number)
        except NoSuchKey:
            return
        if header.epoch != self.epoch:
            raise self._fenced_error(number)

    def _fenced_error(self, number: int) -> Fenced:
        return Fenced(f"job {self._job}: segment {number} was written by another master; epoch {self.epoch} ends")


def claim(store: Store, job: str, address: str, now: float, *, stands_in: bool = False) -> tuple[Journal, State]:
    """Replay the journal and take the job over. Raises Fenced if another master does so at the same time."""
    archived_to = 0
    while True:
        last, state, replay_cost = _replay(store, job)
        number, epoch = last + 1, state.epoch + 1
        claim_record = MasterClaimed(time=max(now, state.time), epoch=epoch, address=address)
        header = Segment(number, epoch, address, uuid4().hex, stands_in=stands_in)
        try:
            if _create(store, job, _draft(header, [claim_record])):
                if segments.is_archived(store, job, number):
                    # Our segment stays: other masters may already be fenced by it.
                    raise Fenced(f"job {job}: other masters have written segment {number} and many more meanwhile")
                return Journal(store, job, header, replay_cost), fold([claim_record], state)
            rival, _ = _read(store, job, number)
        except NoSuchKey as error:  # It was archived in between.
            if archived_to == number:
                raise _unreadable_error(job, number) from error
            archived_to = number
            continue
        if rival.epoch >= epoch:
            raise Fenced(f"job {job}: the master at {rival.address} took over first")
        # The previous master was still writing: replay its segment, then claim the next number.


def _replay(store: Store, job: str) -> tuple[int, State, ReplayCost]:
    """The number of the last segment, the state after it, and what was read after the newest snapshot."""
    last, state = snapshots.newest(store, job)
    count = records = 0
    for body in segments.read(store, job, last):
        _, records_parsed = _parse(body.key, body.data)
        state = fold(records_parsed, state)
        last, count, records = body.number, count + 1, records + len(records_parsed)
    return last, state, ReplayCost(count, records)


def _read(store: Store, job: str, number: int) -> tuple[Segment, list[Record]]:
    key = segments.key(job, number)
    return _parse(key, store.get(key))


def _draft(header: Segment, records: list[Record]) -> Draft:
    lines = b"\n".join(_encode(line) for line in (header, *records))
    return Draft(header.number, header.nonce, lines + b"\n")


def _create(store: Store, job: str, draft: Draft) -> bool:
    """Whether the segment is ours, also if an earlier attempt wrote it. Raises NoSuchKey if the number is taken but the
    segment is gone."""
    faults.point("journal.before_create", number=draft.number)
    is_created = store.create(segments.key(job, draft.number), draft.data)
    faults.point("journal.after_create", number=draft.number)
    return is_created or _read(store, job, draft.number)[0].nonce == draft.nonce


def _unreadable_error(job: str, number: int) -> StoreError:
    return StoreError(f"{segments.key(job, number)} exists and cannot be read; is the store consistent?")


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
