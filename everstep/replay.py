"""`Replay`: another rank computes an iteration's gradients again, before a state that follows from them is certified.

Replicas of a state agree even if one rank computed a wrong gradient, as all of them apply the same mean. So each rank
also computes the gradients of the rank after it, from the same weights and samples. If the results differ, a third
rank's decides which of the two is wrong. The master then steps back to the newest certified state.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch.nn.parallel import DistributedDataParallel

from everstep.runtime.protocol.worker_link import ReplayDiffers
from everstep.session import current
from everstep.token_batches import Batch, Batches


class Replay:
    """Compares the gradients of one model over the ranks. Does nothing unless the job asks for it (certify_replay)."""

    def __init__(self, model: Any, batches: Batches, compute: Callable[[Any, Batch], object]) -> None:
        """`compute(module, batch)` adds the batch's gradients, as the loop does it: with `model` itself, or the module
        inside a DistributedDataParallel. It must do the same on every rank, bit for bit (see
        torch.use_deterministic_algorithms), and communicate with none. `model` may be compiled.

        Raises TypeError for parameters of which a rank has only a part, RuntimeError before `init`, and if the
        DistributedDataParallel has a communication hook already.
        """
        self._session = current("Replay")
        context = self._session.context
        self._batches, self._compute = batches, compute
        self._interval = context.link.welcome.replays if context.link and context.world_size > 1 else 0
        self._replica = model if isinstance(model, DistributedDataParallel) else None
        self._module: torch.nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
        self._parameters = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        self._before_reduction: dict[int, bytes] = {}
        """Digests of this rank's own gradients by the parameter's id, from the replica's buckets."""
        if not self._interval:
            return
        if any(hasattr(parameter, "placements") for parameter in self._parameters):
            raise TypeError("certify_replay needs every parameter whole on each rank; leave it out for a sharded model")
        if self._replica is not None:
            self._replica.register_comm_hook(self._replica.process_group, self._reduce)

    def check(self, batch: Batch) -> None:
        """Compare this iteration's gradients if it is due. Call it after each backward pass, on all ranks: before the
        script reduces gradients by itself, and before it clips or applies them.

        Raises whatever `compute` and torch.distributed raise.
        """
        if not self._interval or batch.iteration % self._interval:
            return
        context = self._session.context
        own = self._before_reduction if self._replica is not None else self._digests()
        results = [self._combine(own), self._compute_again(1)]
        self._before_reduction.clear()
        gathered = _gather(results, context.device)
        if differing_ranks(gathered):
            if context.world_size > 2:
                gathered = _gather([*results, self._compute_again(2)], context.device)
            self._tell(batch.iteration, gathered)
        self._session.replayed = batch.iteration

    def _tell(self, iteration: int, results: Sequence[Sequence[int]]) -> None:
        world_size, wrong = len(results), wrong_ranks(results)
        pairs = ", ".join(
            f"those of rank {rank} differ on rank {(rank - 1) % world_size}" for rank in differing_ranks(results)
        )
        names = f"; rank {', '.join(map(str, wrong))} is wrong" if wrong else ""
        detail = f"its gradients, computed again: {pairs}{names}"
        print(f"everstep: iteration {iteration}: {detail}")
        link = self._session.context.link
        assert link is not None, "without one nothing is due"
        link.tell(ReplayDiffers(iteration, detail, tuple(wrong)))

    def _compute_again(self, distance: int) -> int:
        """The digest of the gradients of the rank that is so many places after this one. Leaves no trace."""
        context = self._session.context
        gradients = [parameter.grad for parameter in self._parameters]
        buffers = [buffer.clone() for buffer in self._module.buffers()]
        self._drop_gradients()
        try:
            with _same_random_state_after(context.device):
                self._compute(self._module, self._batches.of_rank((context.rank + distance) % context.world_size))
            return self._combine(self._digests())
        finally:
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
            with torch.no_grad():
                for buffer, before in zip(self._module.buffers(), buffers, strict=True):
                    buffer.copy_(before)

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _digests(self) -> dict[int, bytes]:
        return {id(parameter): _digest(parameter.grad) for parameter in self._parameters if parameter.grad is not None}

    def _combine(self, digests: Mapping[int, bytes]) -> int:
        """One signed 64-bit number. A parameter without a gradient counts as one with zeros."""
        whole = xxhash.xxh3_64()
        for parameter in self._parameters:
            whole.update(digests.get(id(parameter)) or _digest(torch.zeros_like(parameter)))
        return whole.intdigest() - (1 << 63)

    def _reduce(
        self,
        group: dist.ProcessGroup,
        bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage] (torch demands this annotation)
    ) -> torch.futures.Future[torch.Tensor]:
        """The mean over all ranks, as without a hook. Notes this rank's own gradients if the iteration is due."""
        if self._batches.iteration % self._interval == 0:
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                self._before_reduction[id(parameter)] = _digest(gradient)
        buffer = bucket.buffer().mul_(1 / group.size())
        work = dist.all_reduce(buffer, group=group, async_op=True)
        assert work is not None, "every rank of the group is here"
        return work.get_future().then(lambda done: done.value()[0])


def _same_random_state_after(device: torch.device) -> AbstractContextManager[None]:
    if device.type == "cpu":
        return torch.random.fork_rng([])
    return torch.random.fork_rng([device], device_type=device.type)


def differing_ranks(results: Sequence[Sequence[int]]) -> list[int]:
    """Ranks whose own result differs from that of the rank before.

    `results` by rank: of its own samples, of those of the rank after it, and perhaps of the one after that.
    """
    return [rank for rank in range(len(results)) if results[rank][0] != results[rank - 1][1]]


def wrong_ranks(results: Sequence[Sequence[int]]) -> list[int]:
    """Ranks of which a result differs from that of two others, sorted; none without third results."""
    wrong = set[int]()
    for rank in differing_ranks(results):
        if len(results[rank]) < 3:
            continue
        own, before, third = results[rank][0], results[rank - 1][1], results[rank - 2][2]
        if third == before:
            wrong.add(rank)
        elif third == own:
            wrong.add((rank - 1) % len(results))
    return sorted(wrong)


def _digest(gradient: torch.Tensor) -> bytes:
    """Equal numbers have the same digest: -0 is 0."""
    numbers = (gradient.detach() + 0.0).cpu().contiguous().view(-1)
    return xxhash.xxh3_64(numbers.view(torch.uint8).numpy().data).digest()


def _gather(results: Sequence[int], device: torch.device) -> list[list[int]]:
    """Those of all ranks."""
    mine = torch.tensor(results, dtype=torch.int64, device=device)
    each = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(each, mine)
    return [tensor.tolist() for tensor in each]
