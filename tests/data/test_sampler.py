"""The order of samples: a function of (seed, consumed), whatever the world does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.data import Sampler, sample_count
from everstep.runtime.data.sampler import permutation

seeds = st.integers(-(2**63), 2**64 - 1)


@given(st.integers(1, 60), st.integers(1, 17), seeds, st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_over_any_world_sizes_each_sample_is_applied_once_per_epoch(
    samples: int, batch: int, seed: int, worlds: list[int]
) -> None:
    applied: list[int] = []
    for count_done, world in enumerate(worlds):
        # A fresh sampler each time: what came before leaves no trace but `consumed`.
        sampler = Sampler(samples, batch, seed)
        for rank in range(world):
            applied += sampler.share(count_done * batch, rank, world).tolist()
    assert len(applied) == batch * len(worlds)
    for start in range(0, len(applied) - samples + 1, samples):
        assert sorted(applied[start : start + samples]) == list(range(samples))


@given(st.integers(1, 50), st.integers(1, 20), seeds, st.integers(0, 500), st.integers(1, 9))
def test_the_shares_in_rank_order_are_the_batch(samples: int, batch: int, seed: int, consumed: int, world: int) -> None:
    sampler = Sampler(samples, batch, seed)
    shares = [sampler.share(consumed, rank, world) for rank in range(world)]
    assert np.concatenate(shares).tolist() == sampler.indices(consumed).tolist()
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(1, 50), st.integers(1, 20), st.integers(1, 20), seeds)
def test_the_order_does_not_depend_on_the_batch_size(samples: int, one: int, other: int, seed: int) -> None:
    def stream(batch: int) -> list[int]:
        sampler = Sampler(samples, batch, seed)
        return np.concatenate([sampler.indices(start) for start in range(0, 100, batch)])[:100].tolist()

    assert stream(one) == stream(other)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(permutation(50, seed, epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_the_order_is_this_one_for_ever() -> None:
    assert permutation(10, 7, 0).tolist() == [8, 4, 1, 6, 3, 2, 7, 5, 9, 0]


def test_a_sample_needs_one_token_more_than_its_length() -> None:
    assert [sample_count(tokens, 4) for tokens in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("wrong", [(0, 1), (1, 0)])
def test_nothing_to_read_is_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Sampler(*wrong, seed=0)
