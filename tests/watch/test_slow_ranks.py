"""Which rank is slow, from how long each waits for the others."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.watch.board_fields import Board
from everstep.runtime.watch.slow_ranks import Pace, SlowPart, judge_paces, pace, sentence, slow_ranks


def rank(number: int, samples: int, waits: int, iteration: int = 30, pid: int = 7) -> Board:
    """A board with these counts."""
    return Board(pid, number, 4, number, 1, iteration=iteration, samples=samples, waits=waits)


def paces(*waits: int) -> list:
    """Ranks that waited so many of 100 samples, over 30 s and 30 iterations."""
    return [pace(rank(number, 0, 0, 0), rank(number, 100, wait), 30.0) for number, wait in enumerate(waits)]


def test_the_rank_that_never_waits_is_slow() -> None:
    assert [rank_pace.rank for rank_pace in slow_ranks(paces(67, 66, 2, 65))] == [2]
    assert sentence(paces(67, 66, 2, 65)) == (
        "rank 2 is slow, 0.98 s of its own per iteration; the others take 0.34 s and wait for it: compute: it waits "
        "for neither data, nor saves, nor its host's CPU or disk"
    )


def test_ranks_that_wait_alike_are_not_slow() -> None:
    assert sentence(paces(10, 15, 5, 12)) == ""


def test_devices_that_are_all_slowed_down_alike_do_not_explain_one_rank() -> None:
    hot = [msgspec.structs.replace(rank_pace, lowered="too hot (driver)") for rank_pace in [*ALIKE, SLOW]]
    verdict = judge_paces(hot)
    assert verdict is not None
    assert verdict.part is SlowPart.COMPUTE


def test_of_two_ranks_the_slow_one_is_named() -> None:
    assert [rank_pace.rank for rank_pace in slow_ranks(paces(60, 3))] == [1]


def test_a_new_process_or_too_few_samples_say_nothing() -> None:
    assert pace(rank(0, 0, 0, 0), rank(0, 5, 0), 1.0).iteration_s == 0
    assert pace(rank(0, 0, 0, 0, pid=6), rank(0, 100, 0), 30.0).iteration_s == 0


ALIKE = [Pace(rank, 30, 50, 0.6, 2.5, 0.1, 0.1, 0.01, 0.01, 0.0, 0.0, 0.0001) for rank in range(3)]
SLOW = Pace(3, 30, 50, 0.0, 3.0, 0.1, 0.1, 0.01, 0.01, 0.0, 0.0, 0.0001)


@pytest.mark.parametrize(
    ("changes", "part", "words"),
    [
        ({}, SlowPart.COMPUTE, "compute: it waits for neither data"),
        ({"data_s": 2.0}, SlowPart.DATA, "data: it waits 1.9 s longer for its data loader"),
        ({"staging_s": 2.0}, SlowPart.STAGING, "staging: saves take 1.9 s longer"),
        ({"cpu_wait_s": 2.01}, SlowPart.CPU, "host: CPU: it waits 2 s longer for one"),
        ({"disk_wait_s": 2.01}, SlowPart.DISK, "host: disk: it waits 2 s longer for it"),
        ({"disk_wait_s": 2.0, "faults_hz": 900.0}, SlowPart.MEMORY, "host: memory: it reads 900 pages a second"),
        ({"disk_wait_s": 2.01, "data_s": 2.2}, SlowPart.DISK, "it waits 2 s longer for it while it loads data"),
        ({"cpu_wait_s": 0.4, "data_s": 0.4}, SlowPart.COMPUTE, "compute"),
        ({"lowered": "too hot (driver)"}, SlowPart.GPU, "host: GPU: its clocks are lowered: too hot (driver)"),
        ({"lowered": "too hot (driver)", "data_s": 2.0}, SlowPart.DATA, "data: it waits 1.9 s longer"),
    ],
)
def test_what_explains_half_of_the_time_that_it_takes_longer_is_named(
    changes: dict[str, float], part: SlowPart, words: str
) -> None:
    verdict = judge_paces([*ALIKE, msgspec.structs.replace(SLOW, **changes)])
    assert verdict is not None
    assert (verdict.ranks, verdict.part) == ((3,), part)
    assert words in verdict.sentence


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [({2: {"rtt_s": 0.3}}, (2,)), ({1: {"resent_hz": 9.0}}, (1,)), ({0: {"rtt_s": 0.2}, 2: {"rtt_s": 0.3}}, (2, 0))],
)
def test_where_all_wait_and_nobody_is_slow_the_slow_or_lossy_connections_are_named(
    changes: dict[int, dict[str, float]], ranks: tuple[int, ...]
) -> None:
    verdict = judge_paces(
        [msgspec.structs.replace(rank_pace, **changes.get(rank_pace.rank, {})) for rank_pace in ALIKE]
    )
    assert verdict is not None
    assert (verdict.ranks, verdict.part) == (ranks, SlowPart.NETWORK)


def test_slow_connections_keep_nobody_who_hardly_waits_in_collectives() -> None:
    assert judge_paces([msgspec.structs.replace(rank_pace, waited=0.2, rtt_s=0.3) for rank_pace in ALIKE]) is None


def test_where_communication_takes_all_the_time_few_samples_make_nobody_slow() -> None:
    """Two of 50 samples met rank 1 outside of a collective, and none rank 0."""
    lucky, unlucky = Pace(0, 10, 50, 1.0, 1.1, rtt_s=0.3), Pace(1, 10, 50, 0.96, 1.1, rtt_s=0.28)
    verdict = judge_paces([lucky, unlucky])
    assert verdict is not None
    assert (verdict.ranks, verdict.part) == ((0, 1), SlowPart.NETWORK)


def test_a_single_pause_makes_no_rank_slow() -> None:
    before = Board(7, 0, 2, 0, 1)
    paused = Board(7, 0, 2, 0, 1, iteration=40, samples=50, recent=(0.1,) * 16)
    assert pace(before, paused, 10.0).iteration_s > 0
    assert pace(before, paused, 13.0).iteration_s == 0


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8))
def test_no_more_than_half_of_the_ranks_are_slow(waits: list[int]) -> None:
    assert len(slow_ranks(paces(*waits))) <= len(waits) / 2


@pytest.mark.parametrize(
    "changes", [{"samples": 0}, {"waited": 7.0}, {"waited": -7.0}, {"waited": float("nan")}, {"iteration_s": math.inf}]
)
def test_figures_that_no_rank_can_have_tell_of_no_rank(changes: dict[str, float]) -> None:
    strange = msgspec.structs.replace(SLOW, rank=4, **changes)
    assert judge_paces([*ALIKE, SLOW, strange]) == judge_paces([*ALIKE, SLOW])
    assert judge_paces([strange, strange]) is None


@given(
    st.lists(
        st.builds(Pace, st.integers(0, 9), st.integers(0, 9), st.integers(0, 1 << 53), st.floats(), st.floats()),
        max_size=6,
    )
)
def test_no_figures_make_it_fail(paces: list[Pace]) -> None:
    judge_paces(paces)
