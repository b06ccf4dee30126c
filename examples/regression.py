"""A regression as you would write it for torchrun, without a line of Everstep: after a fault it begins again.

python pipelines/llama_finetune.py --script examples/regression.py --nodes 1
everstep launch --standalone --nproc-per-node 2 examples/regression.py
torchrun --standalone --nproc-per-node 2 examples/regression.py
"""

import os

import torch
import torch.distributed as dist

WEIGHTS = torch.tensor([[2.0], [-1.0], [0.5]])


def main() -> None:
    """Find WEIGHTS again from noisy samples, by gradient descent over all ranks."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    iterations = int(os.environ.get("EVERSTEP_ITERATIONS", "200"))
    weights = torch.zeros(3, 1)
    for iteration in range(iterations):
        chance = torch.Generator().manual_seed(iteration * ranks + rank)
        inputs = torch.randn(16, 3, generator=chance)
        targets = inputs @ WEIGHTS + 0.01 * torch.randn(16, 1, generator=chance)
        slope = inputs.T @ (inputs @ weights - targets) / len(inputs)
        dist.all_reduce(slope)
        weights -= 0.1 * slope / ranks
    print(f"rank {rank}: weights {[round(weight, 2) for weight in weights.flatten().tolist()]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
