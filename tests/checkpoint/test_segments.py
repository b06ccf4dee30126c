"""Which segments go, and when: those that were outgrown, and copies of earlier rounds."""

import pytest

from everstep.runtime.checkpoint.errors import SegmentError
from everstep.runtime.checkpoint.node.core.events import Action, Allocate, EndAllocation, MakeSegment, RemoveSegment
from everstep.runtime.checkpoint.node.core.segments import Reader, Segment, Segments, copies_of
from everstep.runtime.checkpoint.node.core.slots import Identity


@pytest.fixture
def actions() -> list[Action]:
    return []


@pytest.fixture
def segments(actions: list[Action]) -> Segments:
    return Segments(3, actions.append)


def with_memory(segments: Segments, segment: Segment) -> Segment:
    """All its slots have theirs."""
    segments.made(segment.number)
    for slot in segment.table.absent():
        segments.allocated(segment.number, slot)
    return segment


def staged(segments: Segments, segment: Segment) -> Segment:
    """With a whole state in its first slot."""
    assert with_memory(segments, segment).table.acquire(Identity(1, 1)) == 0
    segment.table.stage(0, 4096)
    return segment


def test_an_outgrown_segment_that_is_wanted_again_while_it_is_read_stays(segments: Segments) -> None:
    old, new = (staged(segments, segments.for_worker(0, capacity)) for capacity in (4096, 8192))
    pin = segments.pin(old, 0, Reader.PEER)
    segments.outlive_earlier(0)
    assert not segments.remove_outlived()
    assert segments.to_fetch_into("fetch", 0, 4096) is old
    segments.unpin(pin)
    assert not segments.remove_outlived()
    assert segments.all() == [old, new]


def test_an_earlier_rounds_copy_that_is_read_goes_with_its_reader_unless_a_newer_one_is_written(
    segments: Segments,
) -> None:
    read, written = (staged(segments, segments.to_fetch_into(n, copies_of(n), 4096)) for n in (0, 1))
    newer = written.table.acquire(Identity(2, 1))
    assert newer is not None
    pins = [segments.pin(copy, 0, Reader.PEER) for copy in (read, written)]
    segments.outlive_copies(2)
    written.table.stage(newer, 4096)
    assert not segments.remove_outlived()
    for pin in pins:
        segments.unpin(pin)
    assert segments.remove_outlived()
    assert segments.all() == [written]


def test_memory_that_is_still_coming_for_a_copy_is_not_let_go_of(segments: Segments) -> None:
    coming = segments.to_fetch_into("fetch", copies_of(0), 4096)
    segments.outlive_copies(2)
    assert not segments.remove_outlived()
    assert segments.all() == [coming]


def test_slots_get_their_memory_one_after_the_other_until_the_segment_goes(
    segments: Segments, actions: list[Action]
) -> None:
    segment = segments.for_worker(0, 4096)
    segments.made(segment.number)
    segments.allocated(segment.number, 0)
    segments.for_worker(0, 8192)
    segments.allocated(segment.number, 1)
    one, other = segment.number, segment.number + 1
    wanted = [MakeSegment(one, "0", 3, 4096, 0), Allocate(one), Allocate(one), RemoveSegment(one)]
    assert actions == [*wanted, MakeSegment(other, "0", 3, 8192, 0), EndAllocation(one)]


def test_two_fetches_that_want_slots_of_different_sizes_do_not_remove_each_others(segments: Segments) -> None:
    one, other = (segments.to_fetch_into(size, copies_of(0), size) for size in (4096, 8192))
    assert segments.to_fetch_into(4096, copies_of(0), 4096) is one
    assert segments.all() == [one, other]
    for size in (4096, 8192):
        segments.want_no_more(size)
    assert segments.to_fetch_into("third", copies_of(0), 12288) in segments.all()
    assert other not in segments.all()


def test_a_fetch_whose_segment_gets_no_memory_is_told_so_once(segments: Segments) -> None:
    segment = segments.to_fetch_into("fetch", 0, 4096)
    segments.not_made(segment.number, "no room")
    assert segments.all() == []
    with pytest.raises(SegmentError, match="no room"):
        segments.to_fetch_into("fetch", 0, 4096)
    assert segments.to_fetch_into("fetch", 0, 4096) is not segment
