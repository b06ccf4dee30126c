"""Where the batches of `everstep.loader` come from: a user's map-style or iterable dataset, read from a position on.

Each source yields `FetchedBatch` in the order of the stream, through torch's DataLoader, whose worker processes may
read ahead: a position counts only when the loop has applied it.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol

from torch.utils.data import DataLoader, IterableDataset, default_collate

from everstep.runtime.agent.forkserver import die_with_parent
from everstep.runtime.data import DatasetError, Part, Sampler, mix_seed, parts_of
from everstep.seeding import RandomStream, seed_cpu_generators

_OURS = ("batch_size", "sampler", "batch_sampler", "drop_last")


class Position(NamedTuple):
    """A place in the stream of samples."""

    consumed: int = 0
    """Samples since the first epoch's beginning."""
    epoch: int = 0
    offset: int = 0
    """Samples since this epoch's beginning."""


class Place(NamedTuple):
    """This rank's place in the world."""

    rank: int
    world_size: int


class FetchedBatch(NamedTuple):
    """One rank's share of one global batch."""

    parts: list[Part]
    data: list[Any]
    """What collate_fn made of each part's samples."""
    after: Position
    """The position when the whole global batch is applied."""


@dataclass(frozen=True)
class Shape:
    """How the stream is cut into batches."""

    global_batch: int
    seed: int
    epochs: int | None
    micro_batch: int | None
    shuffle: bool


@dataclass(frozen=True)
class Reading:
    """How DataLoader reads."""

    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    worker_init_fn: Callable[[int], None] | None = None
    others: dict[str, Any] = field(default_factory=dict)
    """Further arguments of DataLoader."""

    def __post_init__(self) -> None:
        for name in _OURS:
            if name in self.others:
                raise ValueError(
                    f"{name}: everstep.loader makes the batches; say global_batch=, micro_batch=, shuffle="
                )

    def open(self, dataset: Any, **how: Any) -> Iterator[Any]:
        """An iterator of DataLoader, whose worker processes die with this process."""
        begin = _Begin(os.getpid(), self.worker_init_fn) if how["num_workers"] else None
        return iter(DataLoader(dataset, worker_init_fn=begin, **how, **self.others))


class _Begin(NamedTuple):
    parent: int
    then: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        """A worker that outlived a killed parent would keep its sockets open, and the other ranks waiting."""
        die_with_parent(self.parent)
        if self.then is not None:
            self.then(worker)


class Source(Protocol):
    """Batches of a dataset."""

    samples: int | None
    """Samples of an epoch; None: unknown."""

    def read(self, start: Position, place: Place) -> Iterator[FetchedBatch]:
        """Every batch from `start` on, for this rank."""
        ...


def source_of(dataset: Any, shape: Shape, reading: Reading) -> Source:
    """Raises DatasetError for an empty dataset, TypeError for anything else."""
    if shape.global_batch < 1 or (shape.micro_batch or 1) < 1:
        raise ValueError(f"global_batch {shape.global_batch}, micro_batch {shape.micro_batch}: both must be at least 1")
    if not isinstance(dataset, IterableDataset) and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return _MapStyle(dataset, shape, reading)
    if not hasattr(dataset, "__iter__"):
        raise TypeError(f"{type(dataset).__name__} is not a dataset: it needs __getitem__ and __len__, or __iter__")
    return _IterableStyle(dataset, shape, reading)


class _MapStyle:
    def __init__(self, dataset: Any, shape: Shape, reading: Reading) -> None:
        self.samples: int | None = len(dataset)
        if not self.samples:
            raise DatasetError(f"{type(dataset).__name__}: the dataset has no samples")
        self._dataset, self._shape, self._reading = dataset, shape, reading
        self._sampler = Sampler(self.samples, shape.global_batch, shape.seed, shape.shuffle)

    def read(self, start: Position, place: Place) -> Iterator[FetchedBatch]:
        requests = ([self._positions(part) for part in parts] for parts in self._plan(start.consumed, place))
        fetch = self._reading.open(
            _IndexedSamples(self._dataset, self._shape.seed),
            batch_sampler=(positions for parts in requests for positions in parts),
            num_workers=self._reading.num_workers, collate_fn=self._reading.collate_fn,
        )  # fmt: skip
        consumed = start.consumed
        for parts in self._plan(start.consumed, place):
            consumed += self._size(consumed)
            assert self.samples is not None
            yield FetchedBatch(parts, [next(fetch) for _ in parts], Position(consumed, *divmod(consumed, self.samples)))

    def _plan(self, consumed: int, place: Place) -> Iterator[list[Part]]:
        while size := self._size(consumed):
            yield parts_of(consumed, size, *place, self._shape.micro_batch)
            consumed += size

    def _size(self, consumed: int) -> int:
        """Samples in the batch after `consumed`: fewer in the last one, 0 after it."""
        if self._shape.epochs is None:
            return self._shape.global_batch
        assert self.samples is not None
        return max(0, min(self._shape.global_batch, self._shape.epochs * self.samples - consumed))

    def _positions(self, part: Part) -> list[tuple[int, int]]:
        """(position in the stream, sample) of each."""
        indices = self._sampler.between(part.start, part.end).tolist()
        return list(zip(range(part.start, part.end), indices, strict=True))


@dataclass(frozen=True)
class _IndexedSamples:
    """Reads samples of a map-style dataset, whose random numbers are a function of (seed, position)."""

    dataset: Any
    seed: int

    def __getitems__(self, places: list[tuple[int, int]]) -> Any:
        """A dataset that reads many at once (Hugging Face's) is seeded with the first position."""
        if hasattr(self.dataset, "__getitems__"):
            seed_cpu_generators(mix_seed(self.seed, places[0][0]))
            return self.dataset.__getitems__([index for _, index in places])
        return [self._read(position, index) for position, index in places]

    def _read(self, position: int, index: int) -> Any:
        seed_cpu_generators(mix_seed(self.seed, position))
        return self.dataset[index]


class _IterableStyle:
    def __init__(self, dataset: Any, shape: Shape, reading: Reading) -> None:
        self.samples: int | None = None
        self._dataset, self._shape, self._reading = dataset, shape, reading

    def read(self, start: Position, place: Place) -> Iterator[FetchedBatch]:
        stream = _Stream(self._dataset, self._shape, self._reading.collate_fn or default_collate, start, place)
        # More than one worker process would only read the same stream more than once.
        workers = min(self._reading.num_workers, 1)
        yield from self._reading.open(stream, batch_size=None, num_workers=workers, collate_fn=_as_it_is)


def _as_it_is(batch: FetchedBatch) -> FetchedBatch:
    return batch


class _Stream(IterableDataset[FetchedBatch]):
    """Every rank reads the whole stream, and collates its share of each global batch."""

    def __init__(
        self, dataset: Iterable[Any], shape: Shape, collate: Callable[[list[Any]], Any], start: Position, place: Place
    ) -> None:
        self._dataset, self._shape, self._collate = dataset, shape, collate
        self._start, self._place = start, place

    def __iter__(self) -> Iterator[FetchedBatch]:
        alone = RandomStream(self._shape.seed)
        reader, begin = self._samples(), self._start
        while True:
            with alone.in_use():
                group = list(islice(reader, self._shape.global_batch))
            if not group:
                return
            after = group[-1][1]
            yield self._share(begin, [sample for sample, _ in group], after)
            begin = after

    def _share(self, begin: Position, samples: list[Any], after: Position) -> FetchedBatch:
        start = begin.consumed
        parts = parts_of(start, len(samples), *self._place, self._shape.micro_batch)
        return FetchedBatch(parts, [self._collate(samples[p.start - start : p.end - start]) for p in parts], after)

    def _samples(self) -> Iterator[tuple[Any, Position]]:
        """Every sample from the start on, with the position after it. What the dataset draws at random is a function
        of (seed, epoch)."""
        consumed, epoch, skip_count = self._start
        while self._shape.epochs is None or epoch < self._shape.epochs:
            seed_cpu_generators(mix_seed(self._shape.seed, epoch))
            offset = skip_count
            for sample in self._reader(epoch, skip_count):
                consumed, offset = consumed + 1, offset + 1
                yield sample, Position(consumed, epoch, offset)
            if not offset:
                raise DatasetError(f"{type(self._dataset).__name__}: epoch {epoch} of the dataset has no samples")
            epoch, skip_count = epoch + 1, 0

    def _reader(self, epoch: int, skip_count: int) -> Iterator[Any]:
        if set_epoch := getattr(self._dataset, "set_epoch", None):
            set_epoch(epoch)
        # Not by `skip`: that of Hugging Face's shuffled streams gives another order, and forgets the epoch.
        return islice(iter(self._dataset), skip_count, None)
