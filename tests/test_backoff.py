"""Pauses between attempts, for any first and longest pause."""

import random
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.system.backoff import backoff


def _longest(_: float, most: float) -> float:
    return most


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    assert list(islice(backoff(0.5, 3.0, _longest), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_without_a_longest_pause_they_grow_without_end() -> None:
    assert list(islice(backoff(0.1, uniform=_longest), 11))[-1] == 0.1 * 2**10


@given(st.floats(0.01, 10), st.floats(1, 1000), st.integers(0, 2**32))
def test_each_pause_is_shortened_by_up_to_half(first_s: float, times: float, seed: int) -> None:
    longest_s = first_s * times
    bounds = islice(backoff(first_s, longest_s, _longest), 20)
    for pause, bound in zip(backoff(first_s, longest_s, random.Random(seed).uniform), bounds, strict=False):
        assert bound / 2 <= pause <= bound <= longest_s
