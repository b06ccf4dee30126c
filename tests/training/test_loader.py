"""Users' own datasets: each sample once an epoch, whatever world trains and whenever it is killed."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, StackDataset, Subset, get_worker_info

from everstep.dataset_batches import ElasticSampler, LoadedBatch, Loader
from everstep.dataset_reading import Reading, Shape
from everstep.own_datasets import source_of
from everstep.runtime.checkpoint.errors import StateError
from everstep.runtime.data import DatasetError, Sampler
from everstep.runtime.protocol.worker_link import Link, Welcome
from everstep.session import Context, Session
from tests.examples import examples

SAMPLES, SEED = 23, 5


class Numbers(Dataset[tuple[int, float]]):
    """Sample i: i, and a number drawn at random."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.random() + float(torch.rand(()))


class Shuffled(IterableDataset[int]):
    """0..SAMPLES-1 in an order drawn from the global generator, as users write it."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(SAMPLES))
        random.shuffle(order)
        return iter(order)


class Divided(IterableDataset[int]):
    """0..SAMPLES-1, divided among a DataLoader's workers."""

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        assert worker is not None
        return iter(range(worker.id, SAMPLES, worker.num_workers))


class HuggingFaceLike:
    """What `datasets.Dataset` has: it reads many samples at once, as dicts, and is no torch Dataset."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, int]:
        raise AssertionError("one by one")

    def __getitems__(self, indices: list[int]) -> list[dict[str, int]]:
        return [{"label": index} for index in indices]


def open_loader(dataset: Any, rank: int = 0, world: int = 1, **how: Any) -> Loader:
    defaults = {"global_batch": 4, "seed": SEED, "epochs": None, "micro_batch": None, "shuffle": True}
    shape = Shape(**{name: how.pop(name, value) for name, value in defaults.items()})
    session = Session(Context(rank, world, rank, torch.device("cpu"), 1))
    iterations, streams = how.pop("iterations", None), how.pop("streams", None)
    exchange = how.pop("exchange", lambda wanted, read: read)
    return Loader(session, source_of(dataset, shape, Reading(**how), streams, exchange), shape, iterations)


def first(data: Any) -> list[int]:
    """The samples that a part's data are of."""
    data = data["label"] if isinstance(data, dict) else data
    return (data[0] if isinstance(data, list) else data).tolist()


def samples(batch: LoadedBatch) -> list[int]:
    return [sample for part in batch.parts if part.weight for sample in first(part.data)]


def train(
    dataset: Callable[[], Any], worlds: list[tuple[int, int]], **how: Any
) -> tuple[list[int], list[dict[str, int]]]:
    """The samples applied, in rank order, by worlds of some size that do so many iterations each and are then killed:
    each continues from the state after the last one. And these states."""
    state: dict[str, int] = {}
    applied: list[int] = []
    states = []
    for world, iterations in worlds:
        loaders = [open_loader(dataset(), rank, world, **how) for rank in range(world)]
        for loader in loaders:
            if state:
                loader.load_state_dict(state)
        for together in islice(zip(*loaders, strict=True), iterations):
            applied += [sample for batch in together for sample in samples(batch)]
            (state,) = {tuple(loader.state_dict().items()): loader.state_dict() for loader in loaders}.values()
        states.append(state)
    return applied, states


worlds = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=12)


@settings(max_examples=examples(20))
@given(worlds, st.integers(1, 9), st.none() | st.integers(1, 3))
def test_whatever_worlds_train_and_are_killed_the_order_is_that_of_the_seed(
    worlds: list[tuple[int, int]], batch: int, micro_batch: int | None
) -> None:
    applied, _ = train(Numbers, worlds, global_batch=batch, micro_batch=micro_batch)
    assert applied == Sampler(SAMPLES, batch, SEED).between(0, len(applied)).tolist()
    for start in range(0, len(applied) - SAMPLES + 1, SAMPLES):
        assert sorted(applied[start : start + SAMPLES]) == list(range(SAMPLES))


@settings(max_examples=examples(20))
@given(worlds, st.integers(1, 9))
def test_an_iterable_dataset_that_shuffles_is_read_once_an_epoch_by_any_worlds(
    worlds: list[tuple[int, int]], batch: int
) -> None:
    applied, _ = train(Shuffled, worlds, global_batch=batch)
    undisturbed, _ = train(Shuffled, [(1, len(applied) // batch)], global_batch=batch)
    assert applied == undisturbed
    for start in range(0, len(applied) - SAMPLES + 1, SAMPLES):
        assert sorted(applied[start : start + SAMPLES]) == list(range(SAMPLES))


def test_200_random_kills_between_3_and_4_ranks_lose_and_repeat_nothing() -> None:
    chance = random.Random(7)
    worlds = [(3 + kill % 2, chance.randrange(4)) for kill in range(200)]
    applied, _ = train(Numbers, worlds)
    assert len(applied) == 4 * sum(iterations for _, iterations in worlds)
    assert applied == Sampler(SAMPLES, 4, SEED).between(0, len(applied)).tolist()


@pytest.mark.parametrize("dataset", [Numbers, Shuffled, HuggingFaceLike])
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_that_read_ahead_change_nothing(dataset: Callable[[], Any], workers: int) -> None:
    calm, _ = train(dataset, [(1, 14)], epochs=2)
    applied, states = train(dataset, [(2, 3), (1, 4), (3, 9)], epochs=2, num_workers=workers)
    assert applied == calm
    assert len(applied) == 2 * SAMPLES
    assert [state["consumed"] for state in states] == [12, 28, 46]
    assert states[-1]["iteration"] == 12


def test_two_epochs_have_two_orders_and_the_last_batch_is_what_is_left() -> None:
    loader = open_loader(Numbers(), epochs=2)
    batches = list(loader)
    assert [len(batch.positions) for batch in batches] == [4] * 11 + [2]
    applied = [sample for batch in batches for sample in samples(batch)]
    assert applied[:SAMPLES] != applied[SAMPLES:]
    assert sorted(applied[:SAMPLES]) == sorted(applied[SAMPLES:]) == list(range(SAMPLES))


@pytest.mark.parametrize(("batch", "expected"), [(SAMPLES, [0, 1]), (4, [0] * 5 + [1] * 7)])
@pytest.mark.parametrize(("dataset", "streams"), [(Numbers(), None), (Shuffled(), None), (Divided(), 2)])
def test_a_batchs_epoch_is_that_of_its_last_sample(
    dataset: Any, streams: int | None, batch: int, expected: list[int]
) -> None:
    loader = open_loader(dataset, global_batch=batch, epochs=2, streams=streams)
    assert [batch.epoch for batch in loader] == expected


def test_a_loop_that_ends_with_its_data_shows_the_last_iteration_that_it_did() -> None:
    loader = open_loader(Numbers(), epochs=1)
    for _ in loader:
        pass
    assert loader._session.iteration == loader.iteration


def test_unshuffled_samples_come_in_their_own_order() -> None:
    (batch,) = open_loader(Numbers(), shuffle=False, iterations=1)
    assert samples(batch) == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("dataset", "numbers_in"),
    [
        (Numbers(), lambda data: data[1]),
        (Subset(Subset(Numbers(), range(3, 22)), range(18)), lambda data: data[1]),
        (Subset(StackDataset(numbers=Numbers()), range(18)), lambda data: data["numbers"][1]),
    ],
)
def test_what_a_dataset_draws_at_random_depends_on_the_position_alone(
    dataset: Dataset[Any], numbers_in: Callable[[Any], Any], workers: int
) -> None:
    def draws_of(world: int) -> list[float]:
        loaders = [open_loader(dataset, rank, world, iterations=3, num_workers=workers) for rank in range(world)]
        together = zip(*loaders, strict=True)
        return [number for batches in together for batch in batches for number in numbers_in(batch.data).tolist()]

    assert draws_of(1) == draws_of(2) == draws_of(4)


def test_gradient_accumulation_keeps_the_micro_batch_when_the_world_shrinks() -> None:
    def lengths(world: int) -> list[int]:
        batch = next(iter(open_loader(Numbers(), 0, world, global_batch=16, micro_batch=4)))
        assert [part.is_last for part in batch.parts] == [*([False] * (len(batch.parts) - 1)), True]
        return [len(first(part.data)) for part in batch.parts]

    assert lengths(4) == [4]
    assert lengths(2) == [4, 4]
    assert lengths(1) == [4, 4, 4, 4]


def test_several_parts_have_no_single_data() -> None:
    batch = next(iter(open_loader(Numbers(), micro_batch=2)))
    with pytest.raises(ValueError, match=r"2 parts.*batch\.parts"):
        _ = batch.data


def test_a_position_loaded_within_the_loop_is_where_it_goes_on() -> None:
    loader = open_loader(Numbers(), num_workers=1)
    batches = iter(loader)
    first_samples = samples(next(batches))
    state = loader.state_dict()
    first_time = samples(next(batches))
    loader.load_state_dict(state)
    assert samples(next(batches)) == first_time != first_samples


class SilentLink:
    """What a session has of its agent: the job skips the batch of iteration 2."""

    welcome = Welcome("job", "store", skips=(2,))

    def tell(self, message: object) -> None:
        """Drop what a worker reports."""


@pytest.mark.parametrize("dataset", [Numbers, Shuffled])
def test_a_batch_that_the_job_skips_is_left_out_in_any_world(
    dataset: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    calm = [samples(batch) for batch in open_loader(dataset(), iterations=4)]
    of_ranks: list[list[LoadedBatch]] = []
    for rank in range(2):
        loader = open_loader(dataset(), rank, 2, iterations=4)
        loader._session.context = replace(loader._session.context, link=cast("Link", SilentLink()))
        of_ranks.append(list(loader))
        assert (loader.iteration, loader.consumed) == (4, 16)
    together = [samples(first) + samples(second) for first, second in zip(*of_ranks, strict=True)]
    assert together == [calm[0], calm[2], calm[3]]
    assert [batch.iteration for batch in of_ranks[0]] == [1, 3, 4]
    assert capsys.readouterr().err.count("the batch of iteration 2 is skipped") == 1


def test_another_dataset_than_the_saved_one_is_refused() -> None:
    state = open_loader(Numbers()).state_dict()
    with pytest.raises(StateError, match="2 samples, but 23 when"):
        open_loader([1, 2]).load_state_dict(state)


@pytest.mark.parametrize("dataset", [[], IterableDataset[int]])
def test_a_dataset_without_samples_is_refused(dataset: Any) -> None:
    class Nothing(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(())

    with pytest.raises(DatasetError, match="no samples"):
        next(iter(open_loader([] if dataset == [] else Nothing())))


def test_what_is_no_dataset_or_makes_its_own_batches_is_refused() -> None:
    with pytest.raises(TypeError, match="int is not a dataset"):
        open_loader(3)
    with pytest.raises(ValueError, match=r"batch_size: everstep\.loader makes the batches"):
        Reading(others={"batch_size": 4})


@settings(max_examples=examples(20))
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=8))
def test_the_sampler_gives_a_dataloader_each_sample_once_in_any_worlds(worlds: list[tuple[int, int]]) -> None:
    sampler = ElasticSampler(Numbers(), global_batch=4, seed=SEED)
    applied: list[int] = []
    for world, iterations in worlds:
        ranks = []
        for rank in range(world):
            mine = ElasticSampler(Numbers(), global_batch=4, seed=SEED)
            mine.load_state_dict(sampler.state_dict())
            ranks.append(place_of(mine, rank, world, iterations))
        for shares in zip(*ranks, strict=True):
            applied += [sample for share in shares for sample in share]
            sampler.advance()
    assert applied == Sampler(SAMPLES, 4, SEED).between(0, len(applied)).tolist()


def place_of(sampler: ElasticSampler, rank: int, world: int, iterations: int) -> list[list[int]]:
    """What a loop of epochs applies on this rank in so many iterations."""
    shares: list[list[int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", str(rank))
        patch.setenv("WORLD_SIZE", str(world))
        while len(shares) < iterations:
            for share in sampler:
                if len(shares) == iterations:
                    break
                shares.append(share if sampler.weight else [])
                sampler.advance()
    return shares


def test_the_sampler_ends_each_pass_with_its_epoch() -> None:
    sampler = ElasticSampler(Numbers(), global_batch=4)
    loader = DataLoader(Numbers(), batch_sampler=sampler)
    passes = []
    for epoch in range(4):
        assert (sampler.epoch, len(loader)) == (epoch, len(sampler))
        batches = list(loader)
        for _ in batches:
            sampler.advance()
        passes.append(len(batches))
    assert passes == [6, 6, 6, 5]
    assert sampler.consumed == 92 == 4 * SAMPLES
