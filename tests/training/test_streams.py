"""Iterable datasets that divide themselves: each rank reads its own streams, and each sample counts once an epoch."""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

from everstep.runtime.checkpoint.errors import StateError
from everstep.runtime.data import DatasetError
from tests.examples import examples
from tests.training.ranks import Ranks
from tests.training.test_loader import open_loader, samples

STREAMS = 6


class Files(IterableDataset[int]):
    """Files of some samples each, in an order drawn at random, divided as torch's documentation divides them."""

    def __init__(self, sizes: list[int]) -> None:
        self.files = [list(range(sum(sizes[:number]), sum(sizes[: number + 1]))) for number in range(len(sizes))]
        self.read: list[int] = []

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        own = self.files[worker.id :: worker.num_workers] if worker else self.files
        for file in own:
            for sample in random.sample(file, len(file)):
                self.read.append(sample)
                yield sample


SIZES = [5, 9, 0, 4, 7, 1, 8]
TOTAL = sum(SIZES)


def train_world(
    datasets: list[Files], state: dict[str, Any], iterations: int, how: dict[str, Any]
) -> tuple[list[list[int]], dict[str, Any]]:
    """The samples of each batch that a world applies from a state on, a rank for each dataset; and the state then."""
    ranks = Ranks(len(datasets))

    def work(rank: int) -> tuple[list[list[int]], dict[str, Any]]:
        loader = open_loader(datasets[rank], rank, len(datasets), exchange=ranks.exchange(rank), **how)
        if state:
            loader.load_state_dict(state)
        applied = [samples(batch) for batch in islice(loader, iterations)]
        return applied, loader.state_dict()

    results = ranks.run(work)
    states = [{**rank_state, "streams": rank_state["streams"].tolist()} for _, rank_state in results]
    assert all(rank_state == states[0] for rank_state in states)
    together = zip(*(applied for applied, _ in results), strict=True)
    return [list(chain(*parts)) for parts in together], results[0][1]


def train(
    sizes: list[int], worlds: list[tuple[int, int]], **how: Any
) -> tuple[list[list[int]], dict[str, Any], list[list[Files]]]:
    """The samples of each batch, as worlds of some size apply them that do so many iterations each and are then killed;
    the last state; and the datasets of each world's ranks."""
    state: dict[str, Any] = {}
    batches: list[list[int]] = []
    datasets = []
    for world, iterations in worlds:
        datasets.append([Files(sizes) for _ in range(world)])
        more, state = train_world(datasets[-1], state, iterations, {"streams": STREAMS, **how})
        batches += more
    return batches, state, datasets


worlds = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=8)
sizes = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any)


@settings(max_examples=examples(30))
@given(sizes, worlds, st.integers(1, 9), st.integers(2, 7), st.none() | st.integers(1, 3))
def test_whatever_worlds_train_and_are_killed_the_batches_are_the_same(
    sizes: list[int], worlds: list[tuple[int, int]], batch: int, streams: int, micro_batch: int | None
) -> None:
    batches, _, _ = train(sizes, worlds, streams=streams, global_batch=batch, micro_batch=micro_batch)
    calm, _, _ = train(sizes, [(1, len(batches))], streams=streams, global_batch=batch)
    assert batches == calm
    assert {len(applied) for applied in batches} <= {batch}
    counts = Counter(sample for applied in batches for sample in applied)
    assert all(abs(counts[sample] - sum(counts.values()) / sum(sizes)) <= 1 for sample in range(sum(sizes)))


def test_each_sample_is_applied_once_an_epoch_and_the_last_batch_is_what_is_left() -> None:
    batches, state, _ = train(SIZES, [(3, 3), (4, 5), (3, 100)], global_batch=4, epochs=2)
    assert [len(applied) for applied in batches] == [4] * (2 * TOTAL // 4) + [2 * TOTAL % 4] * (2 * TOTAL % 4 > 0)
    counts = Counter(sample for applied in batches for sample in applied)
    assert counts == dict.fromkeys(range(TOTAL), 2)
    assert state["consumed"] == 2 * TOTAL


def test_200_random_kills_between_3_and_4_ranks_lose_and_repeat_nothing() -> None:
    chance = random.Random(7)
    worlds = [(3 + kill % 2, chance.randrange(4)) for kill in range(200)]
    batches, _, _ = train(SIZES, worlds)
    assert batches == train(SIZES, [(1, len(batches))])[0]


def test_each_rank_reads_its_own_part_alone() -> None:
    _, _, ((first, second, third),) = train(SIZES, [(3, 8)], streams=7)
    assert first.read
    assert second.read
    assert third.read
    assert not set(first.read) & set(second.read)
    assert not (set(first.read) | set(second.read)) & set(third.read)


def test_after_a_kill_a_rank_reads_up_to_the_position_of_its_own_streams_alone() -> None:
    batches, _, (_, (first, second)) = train(SIZES, [(2, 6), (2, 1)], streams=7)
    applied = sum(len(batch) for batch in batches)
    assert len(first.read) + len(second.read) <= applied + 2 * 7, "once, and what was read ahead"


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_read_ahead_change_nothing(workers: int) -> None:
    calm, _, _ = train(SIZES, [(1, 100)], epochs=2)
    batches, _, _ = train(SIZES, [(2, 3), (1, 4), (3, 100)], epochs=2, num_workers=workers)
    assert batches == calm


def test_more_ranks_than_streams_lose_and_repeat_nothing() -> None:
    assert train(SIZES, [(5, 9)], streams=2, global_batch=3)[0] == train(SIZES, [(1, 9)], streams=2, global_batch=3)[0]


def test_weights_make_ddps_mean_that_of_the_global_batch() -> None:
    ranks = Ranks(4)

    def work(rank: int) -> list[tuple[float, int]]:
        loader = open_loader(Files(SIZES), rank, 4, streams=6, global_batch=7, exchange=ranks.exchange(rank))
        return [(batch.weight, len(batch.positions)) for batch in islice(loader, 4)]

    for batch in zip(*ranks.run(work), strict=True):
        assert sum(count for _, count in batch) == 7
        assert [weight for weight, _ in batch] == pytest.approx([count * 4 / 7 for _, count in batch])


def test_a_dataset_that_says_how_many_shards_it_has_is_read_as_so_many_streams() -> None:
    dataset = Files(SIZES)
    dataset.num_shards = 3  # type: ignore[attr-defined]
    assert len(open_loader(dataset).state_dict()["streams"]) == 3
    assert "streams" not in open_loader(dataset, streams=1).state_dict()


def test_another_number_of_streams_than_the_saved_one_is_refused() -> None:
    state = open_loader(Files(SIZES), streams=3).state_dict()
    with pytest.raises(StateError, match=r"read as 4 streams, but was as 3 when .*: say streams=3"):
        open_loader(Files(SIZES), streams=4).load_state_dict(state)
    with pytest.raises(StateError, match="say streams=1"):
        open_loader(Files(SIZES), streams=4).load_state_dict(open_loader(Files(SIZES)).state_dict())


@pytest.mark.parametrize(
    ("dataset", "streams", "says"), [([1, 2], 2, "only an iterable"), (Files(SIZES), 0, "at least 1")]
)
def test_streams_that_cannot_be_are_refused(dataset: Any, streams: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        open_loader(dataset, streams=streams)


def test_streams_without_samples_are_refused() -> None:
    with pytest.raises(DatasetError, match="epoch 0 has no samples"):
        next(iter(open_loader(Files([0]), streams=2)))
