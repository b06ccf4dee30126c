"""Which task reads which bytes: pure."""

from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.text import Extent
from everstep.runtime.text.files import Kind
from everstep.steps.preprocess.plan import LARGEST, shards, task_count


def extent(name: int, gaps: list[int]) -> Extent:
    borders = [0]
    for gap in gaps:
        borders.append(borders[-1] + gap)
    return Extent(str(name), Kind.LINES_ZST, borders[-1], tuple(borders))


files = st.lists(st.lists(st.integers(1, 50), max_size=8), max_size=5)


@given(files, st.integers(1, 30))
def test_every_byte_has_one_task_in_order_and_cuts_are_borders(gaps: list[list[int]], count: int) -> None:
    extents = [extent(number, gap) for number, gap in enumerate(gaps)]
    planned = shards("train", extents, count)
    assert len(planned) <= count
    assert [shard.number for shard in planned] == list(range(len(planned)))
    pieces = [piece for shard in planned for piece in shard.pieces]
    for file_extent in extents:
        mine = [piece for piece in pieces if piece.path == file_extent.path]
        ends = [0, *(piece.end for piece in mine)]
        assert [piece.start for piece in mine] == ends[:-1]
        assert ends[-1] == file_extent.size
        assert file_extent.borders is not None
        assert set(ends) <= set(file_extent.borders)
    assert [int(piece.path) for piece in pieces] == sorted(int(piece.path) for piece in pieces)


@given(st.integers(0, 1 << 40), st.integers(1, 128))
def test_tasks_are_few_and_large(total: int, cores: int) -> None:
    count = task_count(total, cores)
    assert 1 <= count <= max(4 * cores, -(-total // LARGEST) + cores - 1)
    assert count < cores or count % cores == 0
