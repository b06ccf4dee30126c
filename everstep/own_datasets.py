"""Where the batches of `everstep.loader` come from: a user's map-style or iterable dataset, read from a position on.

Each source yields `FetchedBatch` in the order of the stream, through torch's DataLoader, whose worker processes may
read ahead: a position counts only when the loop has applied it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, StackDataset, Subset, default_collate

from everstep.dataset_reading import FetchedBatch, Place, Position, Reading, Shape, Source
from everstep.dataset_streams import Exchange, StreamsSource
from everstep.runtime.data import DatasetError, Part, Sampler, mix_seed, parts_of
from everstep.seeding import RandomStream, seed_cpu_generators


def source_of(dataset: Any, shape: Shape, reading: Reading, streams: int | None, exchange: Exchange) -> Source:
    """Raises DatasetError for an empty dataset, TypeError for anything else, ValueError for numbers that do not fit."""
    if shape.global_batch < 1 or (shape.micro_batch or 1) < 1:
        raise ValueError(f"global_batch {shape.global_batch}, micro_batch {shape.micro_batch}: both must be at least 1")
    if not isinstance(dataset, IterableDataset) and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        if streams is not None:
            raise ValueError(f"streams={streams}: only an iterable dataset is read as streams")
        return _MapStyle(dataset, shape, reading)
    if not hasattr(dataset, "__iter__"):
        raise TypeError(f"{type(dataset).__name__} is not a dataset: it needs __getitem__ and __len__, or __iter__")
    count = _shards_of(dataset) if streams is None else streams
    if count < 1:
        raise ValueError(f"streams={count}: at least 1")
    if count == 1:
        return _IterableStyle(dataset, shape, reading)
    return StreamsSource(dataset, shape, reading, count, exchange)


def _shards_of(dataset: Any) -> int:
    """How many parts a stream of Hugging Face's has, which it divides among workers; 1 for other datasets."""
    shards = getattr(dataset, "num_shards", 1)
    return shards if isinstance(shards, int) and shards > 0 else 1


class _MapStyle:
    streams = 1

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
            epoch = (consumed - 1) // self.samples  # In which the batch's last sample is.
            after = Position(consumed, epoch, consumed - epoch * self.samples)
            yield FetchedBatch(parts, [next(fetch) for _ in parts], after)

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
        if _reads_many(self.dataset):
            seed_cpu_generators(mix_seed(self.seed, places[0][0]))
            return self.dataset.__getitems__([index for _, index in places])
        return [self._read(position, index) for position, index in places]

    def _read(self, position: int, index: int) -> Any:
        seed_cpu_generators(mix_seed(self.seed, position))
        return self.dataset[index]


def _reads_many(dataset: Any) -> bool:
    """Whether it has a way of its own to read many samples: torch's Subset and StackDataset have what is in them."""
    if isinstance(dataset, Subset):
        return _reads_many(dataset.dataset)
    if isinstance(dataset, StackDataset):
        inside = dataset.datasets
        return any(map(_reads_many, inside.values() if isinstance(inside, dict) else inside))
    return hasattr(dataset, "__getitems__")


class _IterableStyle:
    streams = 1

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
        consumed, epoch, skip_count, _ = self._start
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
