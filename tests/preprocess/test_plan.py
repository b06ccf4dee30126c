"""Byte ranges: every line has one task, wherever the cuts fall."""

import io

from hypothesis import given
from hypothesis import strategies as st

from steps.preprocess.lines import lines
from steps.preprocess.plan import LARGEST, shards, task_count

contents = st.lists(st.text("ab\u00e9\U0001f642 \r", max_size=8), max_size=12).flatmap(
    lambda texts: st.sampled_from(["\n".join(texts).encode(), "\n".join([*texts, ""]).encode()])
)


@given(st.lists(contents, max_size=4), st.integers(1, 30))
def test_every_line_is_read_once_and_in_order(files: list[bytes], count: int) -> None:
    planned = shards("train", [(str(number), len(data)) for number, data in enumerate(files)], count)
    read = [
        line
        for shard in planned
        for piece in shard.pieces
        for line in lines(io.BytesIO(files[int(piece.path)]), piece.start, piece.end)
    ]
    assert read == [line for data in files for line in io.BytesIO(data) if line.strip()]
    assert len(planned) <= count


@given(st.integers(0, 1 << 40), st.integers(1, 128))
def test_tasks_are_few_and_large(total: int, cores: int) -> None:
    count = task_count(total, cores)
    assert 1 <= count <= max(4 * cores + 1, -(-total // LARGEST))
