"""Which rank is slow, from how long each waits for the others."""

from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.watch.board import Board
from everstep.runtime.watch.slow_ranks import pace, sentence, slow_ranks


def rank(number: int, samples: int, waits: int, iteration: int = 30, pid: int = 7) -> Board:
    """A board with these counts."""
    return Board(pid, number, 4, number, 1, iteration=iteration, samples=samples, waits=waits)


def paces(*waits: int) -> list:
    """Ranks that waited so many of 100 samples, over 30 s and 30 iterations."""
    return [pace(rank(number, 0, 0, 0), rank(number, 100, one), 30.0) for number, one in enumerate(waits)]


def test_the_rank_that_never_waits_is_slow() -> None:
    assert [one.rank for one in slow_ranks(paces(67, 66, 2, 65))] == [2]
    assert sentence(paces(67, 66, 2, 65)) == (
        "rank 2 is slow: 0.98 s of its own per iteration, the others 0.34 s and wait for it"
    )


def test_ranks_that_wait_alike_are_not_slow() -> None:
    assert sentence(paces(10, 15, 5, 12)) == ""


def test_of_two_ranks_the_slow_one_is_named() -> None:
    assert [one.rank for one in slow_ranks(paces(60, 3))] == [1]


def test_a_new_process_or_too_few_samples_say_nothing() -> None:
    assert pace(rank(0, 0, 0, 0), rank(0, 5, 0), 1.0).own_s == 0
    assert pace(rank(0, 0, 0, 0, pid=6), rank(0, 100, 0), 30.0).own_s == 0


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8))
def test_no_more_than_half_of_the_ranks_are_slow(waits: list[int]) -> None:
    assert len(slow_ranks(paces(*waits))) <= len(waits) / 2
