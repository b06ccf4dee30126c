"""An iterable dataset that divides itself, read as a fixed number of streams: each rank reads only its own.

Stream i of n is what torch's DataLoader with `num_workers=n` would read in worker i: the dataset asks
`torch.utils.data.get_worker_info`, as torch's documentation, Hugging Face's streams and webdataset's `split_by_worker`
do. A global batch takes equally many samples of each stream that has some left. So which samples it has does not depend
on who reads them. In a batch they are in the order of their streams, of which each rank has consecutive ones.

How much a stream holds is known when it ends. So the ranks tell each other how many samples they read for each batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, default_collate, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from everstep.dataset_reading import FetchedBatch, Place, Position, Reading, Shape
from everstep.runtime.data import DatasetError, Part, divide, mix_seed
from everstep.seeding import RandomStream

Exchange = Callable[[Sequence[int], Sequence[int]], Sequence[int]]
"""Given how many samples were wanted of each stream, and how many this rank has read of each (0 of those of others),
returns how many all ranks have read of each. Every rank calls it equally often."""


class StreamsSource:
    """A `Source` of `streams` streams."""

    def __init__(self, dataset: Any, shape: Shape, reading: Reading, streams: int, exchange: Exchange) -> None:
        self.samples: int | None = None
        self.streams = streams
        self._dataset, self._shape, self._reading, self._exchange = dataset, shape, reading, exchange

    def read(self, start: Position, place: Place) -> Iterator[FetchedBatch]:
        """Every batch from `start` on, for this rank."""
        position = start if start.streams else self._begin(start, start.epoch)
        reader = self._reader(position, place)
        while True:
            began, counts = position.consumed, [0] * self.streams
            samples: dict[int, list[Any]] = {stream: [] for stream in own_streams(self.streams, place)}
            while (missing := self._shape.global_batch - (position.consumed - began)) > 0:
                if all(count < 0 for count in position.streams):
                    if not position.offset:
                        raise DatasetError(f"{type(self._dataset).__name__}: epoch {position.epoch} has no samples")
                    if position.epoch + 1 == self._shape.epochs:
                        break
                    position = self._begin(position, position.epoch + 1)
                    reader = self._reader(position, place)
                wanted = quotas(missing, position)
                taken = {stream: reader.take(stream, wanted[stream]) for stream in samples}
                for stream, more in taken.items():
                    samples[stream] += more
                read = self._exchange(wanted, [len(taken.get(stream, ())) for stream in range(self.streams)])
                counts = [before + now for before, now in zip(counts, read, strict=True)]
                position = _after(position, wanted, read)
            if position.consumed == began:
                return
            own = [sample for stream in samples.values() for sample in stream]
            yield FetchedBatch(*self._share(began, counts, own, place, reader), position)

    def _begin(self, position: Position, epoch: int) -> Position:
        """The beginning of that epoch."""
        return Position(position.consumed, epoch, 0, (0,) * self.streams)

    def _reader(self, start: Position, place: Place) -> "_Reader":
        epoch = _Epoch(self._dataset, mix_seed(self._shape.seed, start.epoch), start.epoch, self.streams)
        own = own_streams(self.streams, place)
        skips = {stream: start.streams[stream] for stream in own if start.streams[stream] >= 0}
        # A rank without samples computes one that weighs nothing: of its own streams, else of any.
        first = own.start if own else place.rank % self.streams
        return _Reader(epoch, skips, -(-self._shape.global_batch // self.streams), self._reading, first)

    def _share(
        self, start: int, counts: Sequence[int], samples: list[Any], place: Place, reader: "_Reader"
    ) -> tuple[list[Part], list[Any]]:
        """This rank's parts of a batch that has so many samples of each stream, and what collate_fn made of each."""
        places = [place._replace(rank=rank) for rank in range(place.world_size)]
        sizes = [sum(counts[stream] for stream in own_streams(self.streams, each)) for each in places]
        first, last = start + sum(sizes[: place.rank]), start + sum(sizes[: place.rank + 1])
        parts = divide(start, first, last, max(sizes), place.world_size / sum(sizes), self._shape.micro_batch)
        collate = self._reading.collate_fn or default_collate
        data = [
            collate(samples[part.start - first : part.end - first] if part.weight else [reader.any_sample()])
            for part in parts
        ]
        return parts, data


def own_streams(streams: int, place: Place) -> range:
    """The streams that the rank reads."""
    return range(place.rank * streams // place.world_size, (place.rank + 1) * streams // place.world_size)


def quotas(missing: int, position: Position) -> list[int]:
    """How many samples to take of each stream: equally many of those that have not ended, and the rest in turn."""
    living = [stream for stream, count in enumerate(position.streams) if count >= 0]
    each, rest = divmod(missing, len(living))
    wanted = [0] * len(position.streams)
    for number, stream in enumerate(living):
        wanted[stream] = each + ((number - position.offset) % len(living) < rest)
    return wanted


def _after(position: Position, wanted: Sequence[int], read: Sequence[int]) -> Position:
    """A stream that gave less than was wanted has ended."""
    streams = tuple(
        before if before < 0 else before + now if now == quota else -1 - before - now
        for before, quota, now in zip(position.streams, wanted, read, strict=True)
    )
    total = sum(read)
    return Position(position.consumed + total, position.epoch, position.offset + total, streams)


@dataclass(frozen=True)
class _Epoch:
    """Opens streams of one epoch."""

    dataset: Any
    seed: int
    number: int
    streams: int

    def open(self, stream: int) -> "_OpenStream":
        """What the dataset draws at random in it is a function of (seed, epoch, stream)."""
        return _OpenStream(self, stream)


class _OpenStream:
    def __init__(self, epoch: _Epoch, number: int) -> None:
        self._epoch, self._number = epoch, number
        self._random = RandomStream(mix_seed(epoch.seed, number))
        with self._in_use():
            if set_epoch := getattr(epoch.dataset, "set_epoch", None):
                set_epoch(epoch.number)
            self._samples = iter(epoch.dataset)

    def take(self, count: int) -> list[Any]:
        """The next samples, or as many as there are."""
        with self._in_use():
            return list(islice(self._samples, count))

    def skip(self, count: int) -> None:
        """Read them for nothing: a dataset's own ways are not exact where it shuffles."""
        with self._in_use():
            next(islice(self._samples, count, count), None)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Within the block, random numbers are this stream's, and `get_worker_info` says that this is its worker."""
        outside, seed = torch_worker._worker_info, mix_seed(self._epoch.seed, self._number)
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=self._number, num_workers=self._epoch.streams, seed=seed, dataset=self._epoch.dataset
        )
        try:
            with self._random.in_use():
                yield
        finally:
            torch_worker._worker_info = outside


class _Chunks(IterableDataset[dict[int, list[Any]]]):
    """Each item has the next samples of all streams that have some left: as many of each, or what is left."""

    def __init__(self, epoch: _Epoch, skips: Mapping[int, int], length: int) -> None:
        self._epoch, self._skips, self._length = epoch, skips, length

    def __iter__(self) -> Iterator[dict[int, list[Any]]]:
        """In a worker process of a DataLoader: of those streams that are its part."""
        worker = get_worker_info()
        own = list(self._skips)[worker.id :: worker.num_workers] if worker else list(self._skips)
        opened = {stream: self._epoch.open(stream) for stream in own}
        for stream, reader in opened.items():
            reader.skip(self._skips[stream])
        while opened:
            chunks = {stream: reader.take(self._length) for stream, reader in opened.items()}
            opened = {stream: opened[stream] for stream, chunk in chunks.items() if len(chunk) == self._length}
            yield chunks


class _Reader:
    """Reads a rank's streams ahead, in one epoch."""

    def __init__(self, epoch: _Epoch, skips: Mapping[int, int], length: int, reading: Reading, first: int) -> None:
        """`first`: the stream that `any_sample` tries first."""
        self._epoch, self._length, self._first = epoch, length, first
        self._items: Iterator[dict[int, list[Any]]] = iter(())
        if skips:
            chunks, workers = _Chunks(epoch, skips, length), min(reading.num_workers, len(skips))
            self._items = reading.open(chunks, batch_size=None, num_workers=workers, collate_fn=_as_it_is)
        self._ahead: dict[int, list[Any]] = {stream: [] for stream in skips}
        """Read, and not taken."""
        self._over: set[int] = set()
        self._last: list[Any] = []

    def take(self, stream: int, count: int) -> list[Any]:
        """The next samples of one of its streams, or as many as there are."""
        if stream not in self._ahead:  # It had ended before.
            return []
        ahead = self._ahead[stream]
        while len(ahead) < count and stream not in self._over:
            for number, chunk in next(self._items).items():
                self._ahead[number] += chunk
                if len(chunk) < self._length:
                    self._over.add(number)
        samples, ahead[:count] = ahead[:count], []
        self._last = samples[-1:] or self._last
        return samples

    def any_sample(self) -> Any:
        """A sample that somebody has applied or will apply."""
        for stream in range(self._first, self._first + self._epoch.streams):
            if self._last:
                break
            self._last = self._epoch.open(stream % self._epoch.streams).take(1)
        return self._last[0]


def _as_it_is(chunks: dict[int, list[Any]]) -> dict[int, list[Any]]:
    return chunks
