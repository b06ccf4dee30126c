"""When staging costs too much: how many iterations are staged, in a time of its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.checkpoint.worker.staging_interval import FIRST_DECISION, StagingInterval


def train(thinning: StagingInterval, iterations: int, seconds: float, stall: float) -> tuple[float, int]:
    """Seconds that staging took, of all; and how often it was decided otherwise."""
    now, stalled, changes = 100.0, 0.0, 0
    for iteration in range(1, iterations + 1):
        now += seconds
        staged = thinning.is_due(iteration)
        now += stall * staged
        stalled += stall * staged
        changes += thinning.record_save(stall * staged, staged, now)
    return stalled / (now - 100.0), changes


def test_cheap_staging_stays_as_it_is() -> None:
    thinning = StagingInterval(0.01)
    assert train(thinning, 500, 1.0, 0.009) == (pytest.approx(0.009, rel=0.1), 0)
    assert (thinning.every, thinning.why) == (1, "")


def test_without_an_overhead_each_iteration_is_staged_whatever_it_costs() -> None:
    thinning = StagingInterval(0.0)
    assert train(thinning, 500, 0.1, 1.0)[1] == 0
    assert thinning.every == 1


@given(overhead=st.floats(0.001, 0.5), seconds=st.floats(0.001, 10), stall=st.floats(0.001, 10))
def test_once_it_is_measured_staging_takes_no_more_than_its_share(
    overhead: float, seconds: float, stall: float
) -> None:
    thinning = StagingInterval(overhead)
    train(thinning, FIRST_DECISION + 1, seconds, stall)
    assert thinning.every.bit_count() == 1
    every = thinning.every
    if every > 1:
        assert f"one in {every} iterations is staged" in thinning.why
    assert stall / (stall + every * seconds) <= overhead * 1.0001
    assert every == 1 or stall / (stall + every / 2 * seconds) >= overhead * 0.9999


def test_ranks_that_measure_differently_stage_the_same_iterations() -> None:
    measured_costs: list[float] = []
    slow = StagingInterval(0.01, lambda mine: measured_costs.append(mine) or mine)
    train(slow, FIRST_DECISION + 1, 1.0, 0.1)
    fast = StagingInterval(0.01, lambda mine: max(mine, *measured_costs))
    train(fast, FIRST_DECISION + 1, 1.0, 0.001)
    assert slow.every == fast.every == 16


def test_when_staging_is_cheap_again_each_iteration_is_staged_again() -> None:
    thinning = StagingInterval(0.01)
    train(thinning, FIRST_DECISION + 1, 1.0, 0.1)
    assert thinning.every == 16
    train(thinning, 200, 1.0, 0.001)
    assert (thinning.every, thinning.why) == (1, "each iteration is staged again")


def test_saves_that_are_not_typical_count_neither_as_the_cost_nor_as_the_time_of_an_iteration() -> None:
    thinning = StagingInterval(0.02)
    now = 100.0
    for stall in (2.0, 2.0, 2.0, 0.005, 1.2, 1.6, *[0.005] * 11):
        now += 1.0 + stall
        thinning.record_save(stall, True, now, is_typical=stall < 1)
    assert (thinning.every, thinning.why) == (1, "")


def test_while_no_save_is_staged_the_cost_is_that_measured_last() -> None:
    thinning = StagingInterval(0.01)
    train(thinning, FIRST_DECISION + 1, 1.0, 0.5)
    assert thinning.every == 64
    for iteration in range(2 * FIRST_DECISION + 1):  # The next decision.
        thinning.record_save(0.0, False, 200.0 + iteration)
    assert thinning.every == 64
