"""A loop of Lightning Fabric that resumes where it was: three lines of Everstep and a loader.

everstep launch --standalone --nproc-per-node 2 --max-restarts 3 examples/with_fabric.py
python pipelines/llama_finetune.py --script examples/with_fabric.py --nodes 2
"""

import argparse
import os

import torch
from lightning_fabric import Fabric  # pyright: ignore[reportMissingImports]

import everstep


def samples(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of (x, sin x), each a tensor (1,)."""
    return [(x, torch.sin(3 * x)) for x in torch.linspace(-1, 1, count).reshape(count, 1)]


def main() -> None:
    """Fit a sine."""
    parser = argparse.ArgumentParser(description="Fit a sine with Fabric.")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--global-batch", type=int, default=8)
    options = parser.parse_args()

    job = everstep.init()  # Before Fabric, which then uses this process group.
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    strategy = "ddp" if job.world_size > 1 else "auto"
    fabric = Fabric(
        accelerator=job.device.type, devices=local_ranks, num_nodes=job.world_size // local_ranks, strategy=strategy
    )
    fabric.launch()
    network = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), lr=1e-2))
    batches = everstep.loader(samples(128), global_batch=options.global_batch, iterations=options.iterations)
    state = {"model": model.module, "optimizer": optimizer.optimizer, "batches": batches}
    checkpointer = everstep.Checkpointer(state)
    checkpointer.load(state)
    for batch in batches:
        inputs, targets = (tensor.to(fabric.device) for tensor in batch.data)
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        fabric.backward(loss * batch.weight)
        optimizer.step()
        optimizer.zero_grad()
        checkpointer.save(batch.iteration, state)
        everstep.report(loss=job.mean(loss.item(), batch.weight))
    checkpointer.finish(state)


if __name__ == "__main__":
    main()
