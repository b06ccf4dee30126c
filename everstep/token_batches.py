"""Batches of a token dataset: each rank's share, with a checkpointed position."""

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch

from everstep.runtime import faults
from everstep.runtime.data import DatasetError, Sampler, mix_seed, open_dataset, sample_count
from everstep.session import Session, begin_iteration


class Batch(NamedTuple):
    """This rank's share of one global batch."""

    inputs: torch.Tensor
    """(n, sequence_length) int64. n differs by at most 1 between ranks; a rank without samples gets one of weight 0."""
    targets: torch.Tensor
    """(n, sequence_length) int64: the inputs shifted by one token."""
    weight: float
    """Multiply the mean loss by it: DDP's mean over ranks then equals the mean over the global batch."""
    consumed: int
    """Samples of the stream that have been applied after this batch."""
    iteration: int
    """From 1."""
    samples: np.ndarray
    """Positions of these samples in the stream: (n,) int64, empty for a rank without samples."""


class Order(NamedTuple):
    """Which samples make which batch."""

    global_batch: int
    seed: int
    iterations: int | None


class Batches:
    """An iterator over Batch whose position is checkpointed.

    Before each batch it seeds torch from (seed, consumed, rank), so that dropout is the same after a restart.
    """

    def __init__(self, session: Session, dataset: str, length: int, order: Order) -> None:
        self._session, self._length, self._order = session, length, order
        session.loop = None
        dataset_opened = open_dataset(dataset)
        self._tokens = dataset_opened.tokens
        samples = sample_count(len(dataset_opened.tokens), length)
        if not samples:
            raise DatasetError(
                f"{dataset}: {len(dataset_opened.tokens)} tokens do not fill one sample of {length}; "
                "give more text or shorter samples"
            )
        self._sampler = Sampler(samples, order.global_batch, order.seed)
        self.consumed = 0

    @property
    def iteration(self) -> int:
        """Iterations done; inside the loop, the current one."""
        return self.consumed // self._order.global_batch

    def state_dict(self) -> dict[str, int]:
        """The position, in samples."""
        return {"consumed": self.consumed}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Go to that position."""
        self.consumed = int(state_dict["consumed"])

    def __iter__(self) -> Iterator[Batch]:
        """Yields the remaining batches but those that the job skips; an iteration's telemetry is sent when the next one
        begins."""
        order, rank = self._order, self._session.context.rank
        while order.iterations is None or self.iteration < order.iterations:
            begin_iteration()
            began = time.perf_counter()
            start = self.consumed
            self.consumed += order.global_batch
            self._session.iteration = self.iteration
            self._session.beacon("batch")
            if self._session.leaves_out(self.iteration):
                continue
            faults.point("train.iteration", iteration=self.iteration)
            batch = self._batch(start, rank)
            first = {"first_sample": int(batch.samples[0])} if len(batch.samples) else {}
            yield batch
            self._session.end_evaluation()
            self._session.send(
                {
                    "consumed": self.consumed,
                    **first,
                    "tokens": order.global_batch * self._length,
                    "seconds": time.perf_counter() - began,
                }
            )
        self._session.beacon("end")

    def of_rank(self, rank: int) -> Batch:
        """Inside the loop: that rank's share of the current batch. Seeds torch as that rank does.

        Raises ValueError for a rank outside of the world.
        """
        return self._batch(self.consumed - self._order.global_batch, rank)

    def _batch(self, start: int, rank: int) -> Batch:
        context, length = self._session.context, self._length
        torch.manual_seed(mix_seed(self._order.seed, start, rank))
        share = self._sampler.share(start, rank, context.world_size)
        weight = len(share) * context.world_size / self._order.global_batch
        # Every rank must take part in the all-reduce: a rank without a sample reads the first one, at weight 0.
        read = share if len(share) else self._sampler.indices(start)[:1]
        rows = np.stack([self._tokens[i * length : i * length + length + 1] for i in read]).astype(np.int64)
        inputs, targets = torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())
        return Batch(inputs, targets, weight, self.consumed, self.iteration, share)
