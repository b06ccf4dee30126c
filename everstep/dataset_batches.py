"""`everstep.loader` and `everstep.ElasticSampler`: a user's own dataset, each sample applied once at any world size.

    batches = everstep.loader(dataset, global_batch=64, seed=0, epochs=5, num_workers=2)
    state = {"model": model, "optimizer": optimizer, "batches": batches}
    checkpointer = everstep.Checkpointer(state)
    checkpointer.load(state)
    for batch in batches:
        inputs, targets = batch.data
        loss = cross_entropy(model(inputs), targets)
        (loss * batch.weight).backward()
        ...
        checkpointer.save(batch.iteration, state)

The position is in the checkpointed state, and counts what the loop has applied, however far workers read ahead.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Sampler as TorchSampler

from everstep.dataset_reading import FetchedBatch, Place, Position, Reading, Shape, Source
from everstep.dataset_streams import Exchange
from everstep.own_datasets import source_of
from everstep.runtime import faults
from everstep.runtime.checkpoint.errors import StateError
from everstep.runtime.data import Sampler, mix_seed, parts_of
from everstep.session import Session, begin_iteration, current

__all__ = ["ElasticSampler", "LoadedBatch", "LoadedPart", "Loader", "loader"]


class LoadedPart(NamedTuple):
    """What one forward and backward pass computes."""

    data: Any
    """The samples, as collate_fn returned them; by default a batch of tensors."""
    weight: float
    """Multiply the mean loss by it: DDP's mean over ranks, summed over the parts, is the mean over the global batch."""
    is_last: bool
    """Whether it is the last part of its batch. The others may run under DDP's `no_sync()`."""


@dataclass(frozen=True)
class LoadedBatch:
    """This rank's share of one global batch."""

    parts: Sequence[LoadedPart]
    """One; with `micro_batch`, as many as the share needs. Every rank has the same number."""
    iteration: int
    """From 1."""
    consumed: int
    """Samples of the stream that have been applied after this batch."""
    epoch: int
    """The epoch in which this batch ends, from 0."""
    positions: np.ndarray
    """Positions of this rank's samples in the stream: (n,) int64, empty for a rank without samples."""

    @property
    def data(self) -> Any:
        """The data of the only part. Raises ValueError if there are several parts."""
        return self._only.data

    @property
    def weight(self) -> float:
        """The weight of the only part. Raises ValueError if there are several parts."""
        return self._only.weight

    @property
    def _only(self) -> LoadedPart:
        if len(self.parts) != 1:
            raise ValueError(f"this batch has {len(self.parts)} parts of at most micro_batch samples: use batch.parts")
        return self.parts[0]


class Loader:
    """An iterator over LoadedBatch whose position is checkpointed.

    Before each batch it seeds torch from (seed, consumed, rank), so that dropout is the same after a restart.
    """

    def __init__(self, session: Session, source: Source, shape: Shape, iterations: int | None) -> None:
        self._session, self._source, self._shape, self._iterations = session, source, shape, iterations
        session.loop = None
        self._position = Position()
        self.iteration = 0
        """Iterations done; inside the loop, the current one."""

    @property
    def consumed(self) -> int:
        """Samples applied; inside the loop, after the current batch."""
        return self._position.consumed

    def state_dict(self) -> dict[str, Any]:
        """The position, in samples and iterations."""
        consumed, epoch, offset, streams = self._position
        state = {"consumed": consumed, "epoch": epoch, "offset": offset, "iteration": self.iteration}
        state["samples"] = self._source.samples or 0
        if self._source.streams == 1:
            return state
        return {**state, "streams": torch.tensor(streams or (0,) * self._source.streams)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to that position. Raises StateError if it is of a dataset with another number of samples or streams."""
        saved_samples, samples = int(state_dict["samples"]), self._source.samples or 0
        if saved_samples != samples:
            raise StateError(
                f"the dataset has {samples} samples, but {saved_samples} when the state was saved: give it as it was"
            )
        streams = tuple(map(int, state_dict.get("streams", ())))
        if (saved_streams := len(streams) or 1) != self._source.streams:
            raise StateError(
                f"the dataset is read as {self._source.streams} streams, but was as {saved_streams} when the state was "
                f"saved: say streams={saved_streams}"
            )
        consumed, epoch, offset = (int(state_dict[name]) for name in ("consumed", "epoch", "offset"))
        self._position = Position(consumed, epoch, offset, streams)
        self.iteration = int(state_dict["iteration"])

    def __iter__(self) -> Iterator[LoadedBatch]:
        """Yields the remaining batches but those that the job skips; an iteration's telemetry is sent when the next one
        begins."""
        session, reader_place = self._session, None
        reader: Iterator[FetchedBatch] = iter(())
        while self._iterations is None or self.iteration < self._iterations:
            begin_iteration()
            began, start = time.perf_counter(), self._position
            place = Place(session.context.rank, session.context.world_size)
            session.iteration = self.iteration + 1
            session.beacon("batch")
            if reader_place != (
                start,
                place,
            ):  # At the beginning, and when the position or the world was changed meanwhile.
                reader = self._source.read(start, place)
            if (fetched_batch := next(reader, None)) is None:
                session.iteration = self.iteration  # There is no other one.
                break
            self.iteration, self._position = self.iteration + 1, fetched_batch.after
            reader_place = (fetched_batch.after, place)
            if session.leaves_out(self.iteration):
                continue
            faults.point("train.iteration", iteration=self.iteration)
            torch.manual_seed(mix_seed(self._shape.seed, start.consumed, place.rank))
            yield self._batch(fetched_batch)
            session.end_evaluation()
            samples = self.consumed - start.consumed
            session.send({"consumed": self.consumed, "samples": samples, "seconds": time.perf_counter() - began})
        session.beacon("end")

    def _batch(self, fetched_batch: FetchedBatch) -> LoadedBatch:
        pairs = list(zip(fetched_batch.parts, fetched_batch.data, strict=True))
        parts = tuple(LoadedPart(data, part.weight, part is fetched_batch.parts[-1]) for part, data in pairs)
        positions = np.concatenate([np.asarray(part.applied, dtype=np.int64) for part in fetched_batch.parts])
        return LoadedBatch(parts, self.iteration, self.consumed, fetched_batch.after.epoch, positions)


def loader(
    dataset: Any,
    *,
    global_batch: int,
    seed: int = 0,
    epochs: int | None = None,
    iterations: int | None = None,
    micro_batch: int | None = None,
    shuffle: bool = True,
    num_workers: int = 0,
    streams: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    **others: Any,
) -> Loader:
    """This rank's share of each global batch of `dataset`: endless, or `epochs` or `iterations` long.

    A map-style dataset (torch's, a list, Hugging Face's) is shuffled by (seed, epoch). An iterable dataset keeps its
    own order, and its random draws are a function of (seed, epoch). With `streams`, it is read as so many streams:
    stream i is what it yields where `torch.utils.data.get_worker_info()` says worker i of so many. Each rank reads only
    its own ones, and a batch has equally many samples of each. Default: the `num_shards` of the dataset, which Hugging
    Face's streams have. A dataset with one stream is read by every rank, all of it, in at most one worker process.

    Each iteration applies `global_batch` samples, whatever the world size. `micro_batch` limits the samples of one
    pass; a smaller world then accumulates gradients. `others` are passed to torch's DataLoader.

    Put it into the checkpointed state. Raises DatasetError for an empty dataset, TypeError for something that is no
    dataset, ValueError for sizes that do not fit, and RuntimeError before `init`.
    """
    shape = Shape(global_batch, seed, epochs, micro_batch, shuffle)
    session, reading = current("loader"), Reading(num_workers, collate_fn, worker_init_fn, others)
    source = source_of(dataset, shape, reading, streams, _exchange_of(session))
    return Loader(session, source, shape, iterations)


def _exchange_of(session: Session) -> Exchange:
    """Adds what the ranks have read, by one small all-reduce."""

    def exchange(wanted: Sequence[int], read: Sequence[int]) -> Sequence[int]:
        if session.context.world_size == 1:
            return read
        if session.context.rehearses:  # The other ranks are not there.
            return wanted
        total = torch.tensor(read, device=session.context.device)
        torch.distributed.all_reduce(total)
        return total.tolist()

    return exchange


class ElasticSampler(TorchSampler[list[int]]):
    """Gives your own DataLoader the same order: `DataLoader(dataset, batch_sampler=ElasticSampler(dataset, ...))`.

    Each pass over the DataLoader yields what is left of the current epoch; the last batch of an epoch takes its missing
    samples from the next one. A DataLoader reads ahead: call `advance()` when a batch is applied, and put the sampler
    into the checkpointed state.
    """

    def __init__(self, dataset: Sized, *, global_batch: int, seed: int = 0, shuffle: bool = True) -> None:
        """`global_batch` is in samples over all ranks. Rank and world size come from the process group, else from RANK
        and WORLD_SIZE. Raises ValueError for sizes that do not fit."""
        self._order = Sampler(len(dataset), global_batch, seed, shuffle)
        self.consumed = 0
        """Samples applied."""

    @property
    def epoch(self) -> int:
        """Epochs applied."""
        return self.consumed // self._order.samples

    @property
    def iteration(self) -> int:
        """Batches applied."""
        return self.consumed // self._order.global_batch

    @property
    def weight(self) -> float:
        """Weight of the batch that is applied next. Multiply the mean loss by it: ranks may differ by one sample."""
        return self._part(self.consumed)[1]

    def advance(self) -> None:
        """Note that all ranks have applied a batch."""
        self.consumed += self._order.global_batch

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's samples of each batch left in the current epoch. A rank without a sample gets one of weight 0."""
        end = (self.epoch + 1) * self._order.samples
        for consumed in range(self.consumed, end, self._order.global_batch):
            yield self._part(consumed)[0]

    def __len__(self) -> int:
        samples_left = (self.epoch + 1) * self._order.samples - self.consumed
        return -(-samples_left // self._order.global_batch)

    def _part(self, consumed: int) -> tuple[list[int], float]:
        rank, world_size = _rank_and_world_size()
        (part,) = parts_of(consumed, self._order.global_batch, rank, world_size)
        return self._order.between(part.start, part.end).tolist(), part.weight

    def state_dict(self) -> dict[str, int]:
        """The position, in samples."""
        return {"consumed": self.consumed, "samples": self._order.samples}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Go to that position. Raises StateError if it is of a dataset with another number of samples."""
        if (saved_samples := int(state_dict["samples"])) != self._order.samples:
            have = self._order.samples
            raise StateError(
                f"the dataset has {have} samples, but {saved_samples} when the state was saved: give it as it was"
            )
        self.consumed = int(state_dict["consumed"])


def _rank_and_world_size() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
