"""Two trainings of three ranks, one of them with a new DistributedDataParallel in the middle: are the weights equal?

By torch's own buckets, then by Everstep's.
"""

import sys
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from everstep.ddp_buckets import fix_buckets
from tests.training.forked_ranks import failed_ranks

RANKS, ITERATIONS = 3, 6


def train(rank: int, made_anew_at: int) -> list[torch.Tensor]:
    """The weights in the end."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(31, 67), torch.nn.Tanh(), torch.nn.Linear(67, 43), torch.nn.Tanh())
    replica = DistributedDataParallel(model)
    for iteration in range(ITERATIONS):
        if iteration == made_anew_at:
            replica = DistributedDataParallel(model)
        generator = torch.Generator().manual_seed(RANKS * iteration + rank)
        replica(torch.randn(8, 31, generator=generator)).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.sub_(parameter.grad)
            parameter.grad = None
    return [parameter.detach() for parameter in model.parameters()]


def are_equal(rank: int) -> bool:
    """Whether it changes no bit that a round begins in the middle."""
    pairs = zip(train(rank, made_anew_at=0), train(rank, made_anew_at=ITERATIONS // 2), strict=True)
    return all(torch.equal(calm, interrupted) for calm, interrupted in pairs)


def be_rank(rank: int) -> None:
    """The first one writes what it found."""
    by_torch = are_equal(rank)
    fix_buckets()
    fixed = are_equal(rank)
    if rank == 0:
        Path(sys.argv[1]).write_text(f"{by_torch} {fixed}")


if __name__ == "__main__":
    sys.exit(failed_ranks(RANKS, sys.argv[1], be_rank))
