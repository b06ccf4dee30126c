"""What the sources of `everstep.loader` share: positions, the shape of batches, and torch's DataLoader that reads."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch.utils.data import DataLoader

from everstep.runtime.agent.forkserver import die_with_parent
from everstep.runtime.data import Part

_OURS = ("batch_size", "sampler", "batch_sampler", "drop_last")


class Position(NamedTuple):
    """A place in the stream of samples."""

    consumed: int = 0
    """Samples since the first epoch's beginning."""
    epoch: int = 0
    offset: int = 0
    """Samples since this epoch's beginning."""
    streams: tuple[int, ...] = ()
    """Of a dataset that is read as streams: the samples of each since this epoch's beginning; -1 - samples: it has
    ended."""


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
    streams: int
    """As how many it is read."""

    def read(self, start: Position, place: Place) -> Iterator[FetchedBatch]:
        """Every batch from `start` on, for this rank."""
        ...
