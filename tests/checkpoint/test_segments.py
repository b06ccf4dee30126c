"""Which segments go, and when: those that were outgrown, and copies of earlier rounds."""

import pytest

from everstep.runtime.checkpoint.errors import SegmentError
from everstep.runtime.checkpoint.node.core.actions import AllocateSlot, EndAllocation, MakeSegment, RemoveSegment
from everstep.runtime.checkpoint.node.core.events import AllocationEnded, SegmentMade
from everstep.runtime.checkpoint.node.core.segments import Reader, Segment, Segments, copies_of
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.checkpoint.node.core.transaction import Transaction


@pytest.fixture
def tx() -> Transaction:
    return Transaction()


@pytest.fixture
def segments(tx: Transaction) -> Segments:
    return Segments(tx)


def allocate(segments: Segments, segment: Segment) -> Segment:
    """Give all its slots their memory."""
    segments.end_making(SegmentMade(segment.number))
    for _ in segment.table.absent():
        segments.end_allocation(AllocationEnded(segment.number))
    return segment


def stage(segments: Segments, segment: Segment) -> Segment:
    """Stage a state in its first slot."""
    assert allocate(segments, segment).table.acquire(Identity(1, 1)) == 0
    segment.table.stage(0, 4096)
    return segment


def test_an_outgrown_segment_that_is_wanted_again_while_it_is_read_stays(segments: Segments) -> None:
    old, new = (stage(segments, segments.get_for_worker(0, capacity)) for capacity in (4096, 8192))
    pin = segments.pin(old, 0, Reader.PEER)
    segments.supersede_earlier(0)
    assert not segments.advance()
    assert segments.claim("fetch", 0, 4096) is old
    segments.unpin(pin)
    assert not segments.advance()
    assert segments.all() == [old, new]


def test_an_earlier_rounds_copy_that_is_read_goes_with_its_reader_unless_a_newer_one_is_written(
    segments: Segments,
) -> None:
    read, newer_copy = (stage(segments, segments.claim(n, copies_of(n), 4096)) for n in (0, 1))
    newer = newer_copy.table.acquire(Identity(2, 1))
    assert newer is not None
    pins = [segments.pin(copy, 0, Reader.PEER) for copy in (read, newer_copy)]
    segments.supersede_copies(2)
    newer_copy.table.stage(newer, 4096)
    assert not segments.advance()
    for pin in pins:
        segments.unpin(pin)
    assert segments.advance()
    assert segments.all() == [newer_copy]


def test_memory_that_is_still_coming_for_a_copy_is_not_let_go_of(segments: Segments) -> None:
    coming = segments.claim("fetch", copies_of(0), 4096)
    segments.supersede_copies(2)
    assert not segments.advance()
    assert segments.all() == [coming]


def test_slots_get_their_memory_one_after_the_other_until_the_segment_goes(segments: Segments, tx: Transaction) -> None:
    one = segments.get_for_worker(0, 4096).number
    segments.end_making(SegmentMade(one))
    segments.end_allocation(AllocationEnded(one))
    other = segments.get_for_worker(0, 8192).number
    segments.end_allocation(AllocationEnded(one))
    expected = [MakeSegment(one, "0", 3, 4096, 0), AllocateSlot(one), AllocateSlot(one), RemoveSegment(one)]
    assert tx.actions == [*expected, MakeSegment(other, "0", 3, 8192, 0), EndAllocation(one)]


def test_two_fetches_that_want_slots_of_different_sizes_do_not_remove_each_others(segments: Segments) -> None:
    one, other = (segments.claim(size, copies_of(0), size) for size in (4096, 8192))
    assert segments.claim(4096, copies_of(0), 4096) is one
    assert segments.all() == [one, other]
    for size in (4096, 8192):
        segments.release(size)
    assert segments.claim("third", copies_of(0), 12288) in segments.all()
    assert other not in segments.all()


def test_a_fetch_whose_segment_gets_no_memory_is_told_so_once(segments: Segments) -> None:
    segment = segments.claim("fetch", 0, 4096)
    segments.end_making(SegmentMade(segment.number, "no room"))
    assert segments.all() == []
    with pytest.raises(SegmentError, match="no room"):
        segments.claim("fetch", 0, 4096)
    assert segments.claim("fetch", 0, 4096) is not segment
