"""The parts of a global batch, over all world sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.data import parts_of

worlds = st.integers(1, 12)
micro_batches = st.none() | st.integers(1, 20)


@given(st.integers(0, 1000), st.integers(1, 60), worlds, micro_batches)
def test_the_parts_in_rank_order_are_the_batch(start: int, size: int, world: int, micro_batch: int | None) -> None:
    parts = [part for rank in range(world) for part in parts_of(start, size, rank, world, micro_batch)]
    assert [position for part in parts for position in part.applied] == list(range(start, start + size))


@given(st.integers(1, 60), worlds, micro_batches)
def test_every_rank_has_as_many_parts_none_of_them_empty_or_too_large(
    size: int, world: int, micro_batch: int | None
) -> None:
    parts = [parts_of(7, size, rank, world, micro_batch) for rank in range(world)]
    assert len({len(rank_parts) for rank_parts in parts}) == 1
    assert all(1 <= part.end - part.start <= (micro_batch or size) for rank_parts in parts for part in rank_parts)


@given(st.integers(1, 60), worlds, micro_batches)
def test_weighted_means_over_parts_and_ranks_are_the_mean_of_the_batch(
    size: int, world: int, micro_batch: int | None
) -> None:
    def loss(position: int) -> float:
        return position * position / 7

    ranks = [parts_of(0, size, rank, world, micro_batch) for rank in range(world)]
    means = [
        sum(part.weight * sum(map(loss, range(part.start, part.end))) / (part.end - part.start) for part in parts)
        for parts in ranks
    ]
    assert sum(means) / world == pytest.approx(sum(map(loss, range(size))) / size)


def test_a_smaller_world_takes_more_parts_of_the_same_size() -> None:
    assert [len(parts_of(0, 32, 0, world, 8)) for world in (4, 2, 1)] == [1, 2, 4]


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_of_the_world_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match="a world of 2"):
        parts_of(0, 8, rank, 2)
