"""Whose gradients are wrong, by what the ranks got of each other's samples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.replay import differing_ranks, wrong_ranks

DISTANCES = 3
"""A rank computes its own gradients, those of the next rank, and those of the one after that."""


def results_of(world_size: int, wrong: dict[tuple[int, int], int]) -> list[list[int]]:
    """What every rank got; `wrong`: other results by (rank, distance)."""
    return [
        [wrong.get((rank, distance), (rank + distance) % world_size) for distance in range(DISTANCES)]
        for rank in range(world_size)
    ]


def test_ranks_that_get_the_same_differ_nowhere() -> None:
    assert differing_ranks(results_of(4, {})) == []


@given(st.data(), st.integers(3, 9))
def test_one_rank_that_computes_anything_else_is_named_and_no_other(data: st.DataObject, world_size: int) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    results = data.draw(st.lists(st.integers(100, 200), min_size=DISTANCES, max_size=DISTANCES))
    wrong = data.draw(st.sets(st.integers(0, DISTANCES - 1)))
    every = results_of(world_size, {(rank, distance): results[distance] for distance in wrong})
    is_seen = bool(wrong & {0, 1})
    assert bool(differing_ranks(every)) is is_seen
    assert wrong_ranks(every) == [rank] * is_seen


@pytest.mark.parametrize("rank", [0, 1])
def test_of_two_ranks_nobody_is_named(rank: int) -> None:
    results = [row[:2] for row in results_of(2, {(rank, 0): 100})]
    assert differing_ranks(results) == [rank]
    assert wrong_ranks(results) == []
