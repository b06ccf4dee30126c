"""Storage of a journal's segments: each starts as `jobs/<job>/journal/000123`; old ones are archived in blocks.

A block holds BLOCK consecutive segments, compressed: `jobs/<job>/archive/000129.jsonl.gz` those from 129 on. It is
written by one `create` before its segments are deleted from the listing, which every master and agent reads. Claims (a
master's first segment) are never deleted. Two rules keep a number from being won twice after its object was deleted:

- A writer continues from its own last segment. The first number that another master wrote instead is a claim, so its
  object exists and the `create` fails. (An archived segment that is not a claim can be written again only by its own
  writer, with the same bytes.)
- A claimer may have read the journal long ago and meet a number whose object was deleted. Its claim counts only if no
  block with its number exists after the `create`. Invariant: a block exists before its segments are deleted.
"""

import gzip
import logging
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import msgspec

from everstep.runtime import faults
from everstep.runtime.job.records import VERSION
from everstep.runtime.store import NoSuchKey, Store

BLOCK = 128
"""Segments per archive object: a report reads a job of 10^6 records in a thousand requests."""
_PARALLEL_READS = 32
"""Segments read at once: more than a snapshot leaves to be read as a rule."""
HEADER = b'{"kind":"Segment"'
"""Start of each segment's first line."""
_log = logging.getLogger(__name__)
_CLAIM = b'\n{"kind":"MasterClaimed"'


class JournalError(RuntimeError):
    """The journal cannot be read; the text names the segment and the line."""


class MissingError(JournalError):
    """Segments are missing or their block is damaged; `found` is the number of the next segment that exists."""

    def __init__(self, text: str, segments_count: int) -> None:
        super().__init__(text)
        self.found = segments_count


class Segment(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """The first line of every segment: names its writer."""

    number: int
    epoch: int
    address: str
    nonce: str
    v: int = VERSION
    stands_in: bool = False
    """The writer is an agent's, while the job's own master does not answer."""


class StoredSegment(NamedTuple):
    """The bytes of one segment, as it was written."""

    number: int
    key: str
    """Key of the object that holds it."""
    data: bytes


def prefix(job: str) -> str:
    """The key prefix of a job's segments that are not archived."""
    return f"jobs/{job}/journal/"


def key(job: str, number: int) -> str:
    """The key of a segment that is not archived."""
    return f"{prefix(job)}{number:06d}"


def listed_numbers(store: Store, job: str) -> list[int]:
    """The numbers of the listed segments: all after the archived ones, and every claim."""
    names = (entry.key.removeprefix(prefix(job)) for entry in store.list(prefix(job)))
    return sorted(int(name) for name in names if name.isdigit())


def read(store: Store, job: str, after: int = 0) -> Iterator[StoredSegment]:
    """All segments after that number in order, archived or not, even while a master archives. Raises MissingError."""
    next_number, lacking = after + 1, 0
    while True:
        # Blocks are read by name: a listing would grow with the job, and a takeover needs no block.
        while (data := _read_block(store, job, next_number)) is not None:
            before = next_number
            for body in _unpack(job, _block_start(next_number), data):
                if body.number == next_number:
                    yield body
                    next_number += 1
            if next_number == before:
                break
        numbers = [number for number in listed_numbers(store, job) if number >= next_number]
        for at in range(0, len(numbers), BLOCK):
            some = _read_consecutive(store, job, next_number, numbers[at : at + BLOCK])
            if some and is_archived(store, job, next_number):
                break  # Archived since the listing; a listed object of this number may be a late claim that is void.
            yield from some
            next_number += len(some)
        if not numbers or next_number > numbers[-1]:
            return
        if next_number == lacking:
            present = (*_block_starts(store, job), *numbers)
            following = min((number for number in present if number > next_number), default=next_number + 1)
            raise MissingError(f"{key(job, next_number)} is missing, {key(job, following)} is there", following)
        lacking = next_number


def _read_consecutive(store: Store, job: str, next_number: int, numbers: list[int]) -> list[StoredSegment]:
    """The segments from `next_number` on, up to the first that is missing; many at once, as a store may be slow."""
    consecutive_numbers = [number for at, number in enumerate(numbers) if number == next_number + at]
    if not consecutive_numbers:
        return []
    segments_read: list[StoredSegment] = []
    with ThreadPoolExecutor(min(len(consecutive_numbers), _PARALLEL_READS), "everstep-journal") as threads:
        for segment in threads.map(partial(_read_segment, store, job), consecutive_numbers):
            if segment is None:
                break
            segments_read.append(segment)
    return segments_read


def _read_segment(store: Store, job: str, number: int) -> StoredSegment | None:
    try:
        return StoredSegment(number, key(job, number), store.get(key(job, number)))
    except NoSuchKey:
        return None


def is_archived(store: Store, job: str, number: int) -> bool:
    """Whether that segment is in a block."""
    return _read_block(store, job, number, length=0) is not None


def _read_block(store: Store, job: str, number: int, length: int | None = None) -> bytes | None:
    """The first `length` bytes (None: all) of the block with that segment; None if there is no such block."""
    try:
        return store.get(_block_key(job, _block_start(number)), 0, length)
    except NoSuchKey:
        return None


def _block_start(number: int) -> int:
    return number - (number - 1) % BLOCK


def archive(store: Store, job: str, before: int) -> None:
    """Archive the oldest block of segments whose numbers are all smaller than `before`, if there is one. Blocking.

    Archives one block per call, so that no call takes long. First finishes a block that a crash left unfinished. After
    a StoreError nothing is lost; the next call continues.
    """
    blocks, numbers = _block_starts(store, job), listed_numbers(store, job)
    if blocks:
        first = blocks[-1]
        if undeleted := [number for number in numbers if first <= number < first + BLOCK]:
            try:
                bodies = {body.number: body.data for body in _unpack(job, first, store.get(_block_key(job, first)))}
                _delete_archived(store, job, {number: bodies[number] for number in undeleted})
            except MissingError as error:
                _log.warning("archived segments %s are not deleted: %s", undeleted, error)
    first = blocks[-1] + BLOCK if blocks else 1
    if first + BLOCK > before:
        return
    try:
        bodies = {number: store.get(key(job, number)) for number in range(first, first + BLOCK)}
    except NoSuchKey:
        return  # Another master archives the same block.
    faults.point("archive.before_create", first=first)
    store.create(_block_key(job, first), gzip.compress(b"".join(bodies.values()), 6, mtime=0))
    faults.point("archive.after_create", first=first)
    _delete_archived(store, job, bodies)


def _delete_archived(store: Store, job: str, bodies: dict[int, bytes]) -> None:
    """Delete these archived segments from the listing, except claims."""
    for number, data in bodies.items():
        if not _is_claim(data):
            store.delete(key(job, number))
            faults.point("archive.after_delete", number=number)


def _is_claim(data: bytes) -> bool:
    return data.startswith(_CLAIM, data.find(b"\n"))


def _block_starts(store: Store, job: str) -> list[int]:
    """The first segment number of each block, in order."""
    folder = f"jobs/{job}/archive/"
    names = (entry.key.removeprefix(folder).partition(".")[0] for entry in store.list(folder))
    return sorted(int(name) for name in names if name.isdigit())


def _block_key(job: str, first: int) -> str:
    return f"jobs/{job}/archive/{first:06d}.jsonl.gz"


def _unpack(job: str, first: int, data: bytes) -> Iterator[StoredSegment]:
    """The segments of a block."""
    place = _block_key(job, first)
    try:
        lines = gzip.decompress(data).splitlines(keepends=True)
    except (OSError, EOFError, zlib.error) as error:
        raise MissingError(f"{place} is damaged: {error}", first + BLOCK) from None
    starts = [at for at, line in enumerate(lines) if line.startswith(HEADER)]
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(lines)], strict=True), first):
        yield StoredSegment(number, place, b"".join(lines[start:end]))
