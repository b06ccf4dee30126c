"""How often a staged state goes to the store, in a time of its own."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.checkpoint.node.core.persist_interval import (
    FIRST_ITERATIONS,
    PRIOR_S,
    PersistInterval,
    young_daly,
)


class Training:
    """Iterations of so many seconds, longer by `slower` while a copy is under way."""

    def __init__(self, interval: PersistInterval, seconds: float, copy_s: float, slower: float) -> None:
        self.interval, self.seconds, self.copy_s, self.slower = interval, seconds, copy_s, slower
        self.now, self.iteration, self.copies = 1000.0, 0, 0
        self._until: float | None = None
        interval.begin_round(0, self.now)

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            self.now += self.seconds * (1 + self.slower * (self._until is not None))
            self.iteration += 1
            if self._until is not None and self.now >= self._until:
                self.interval.note_persist_end(self._until)
                self._until = None
            self.interval.note_stage(self.iteration, self.now)
            if self._until is None and self.interval.is_due(self.iteration):
                self.interval.note_persist_start(self.now)
                self._until = self.now + self.copy_s
                self.copies += 1


def test_without_an_overhead_every_nth_iteration_is_due() -> None:
    interval = PersistInterval(20)
    assert [i for i in range(1, 61) if interval.is_due(i)] == [20, 40, 60]
    training = Training(interval, 0.1, 5.0, 0.5)
    training.run(500)
    assert interval.interval.iterations == 20


def test_until_something_was_measured_it_is_a_fixed_number() -> None:
    interval = PersistInterval(overhead=0.01)
    assert [i for i in range(1, 40) if interval.is_due(i)] == [FIRST_ITERATIONS, 2 * FIRST_ITERATIONS]


def test_the_interval_is_youngs_and_daly_s_rounded_up_to_a_power_of_two() -> None:
    interval = PersistInterval(overhead=0.5)
    training = Training(interval, 1.0, 10.0, 0.25)
    training.run(3000)
    cost = 10.0 * 0.25 / 1.25
    assert interval.cost_s == pytest.approx(cost, rel=0.1)
    expected_interval = young_daly(cost, PRIOR_S + training.now - 1000)
    assert expected_interval == pytest.approx(math.sqrt(2 * cost * 13_800), rel=0.05)
    assert interval.interval.iterations == 1 << math.ceil(math.log2(expected_interval))
    assert "a failure comes every" in interval.interval.reason


@pytest.mark.parametrize("overhead", [0.01, 0.001])
def test_copies_take_no_more_of_the_time_than_asked(overhead: float) -> None:
    interval = PersistInterval(overhead=overhead)
    training = Training(interval, 0.1, 2.0, 1.0)
    training.run(2000)
    before, began = training.copies, training.now
    training.run(1 << 18)
    lost_s = (training.copies - before) * 1.1  # of each copy's two seconds one is lost, and a begun iteration's part
    assert lost_s / (training.now - began) <= overhead * 1.2


def test_more_failures_make_it_shorter() -> None:
    quiet, troubled = PersistInterval(overhead=0.5), PersistInterval(overhead=0.5)
    for interval in (quiet, troubled):
        Training(interval, 1.0, 10.0, 0.25).run(500)
    troubled.begin_round(30, 1500.0)
    assert troubled.interval.iterations < quiet.interval.iterations
    assert troubled.mean_time_between_failures_s(1500.0) == pytest.approx((PRIOR_S + 500) / 31)


def test_it_is_never_shorter_than_the_copy_takes() -> None:
    interval = PersistInterval(overhead=0.5)
    Training(interval, 0.1, 60.0, 0.0).run(5000)
    assert interval.interval.iterations * 0.1 >= 60


@given(seconds=st.floats(0.001, 100), copy_s=st.floats(0.001, 1000), slower=st.floats(0, 10), count=st.integers(1, 300))
def test_whatever_is_measured_it_is_a_power_of_two(seconds: float, copy_s: float, slower: float, count: int) -> None:
    interval = PersistInterval(overhead=0.01)
    Training(interval, seconds, copy_s, slower).run(count)
    assert interval.interval.iterations.bit_count() == 1


@pytest.mark.parametrize(("iterations", "overhead"), [(0, 0.0), (-1, 0.0), (1, -0.1), (1, 1.0), (1, math.nan)])
def test_what_cannot_be_is_refused(iterations: int, overhead: float) -> None:
    with pytest.raises(ValueError, match="needed"):
        PersistInterval(iterations, overhead)
