"""FSDP2: each rank saves its own part, and the state loads at another number of ranks.

everstep launch --standalone --nproc-per-node 2 --max-restarts 3 examples/fsdp2.py
python pipelines/llama_finetune.py --script examples/fsdp2.py --nodes 2
"""

import argparse

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import everstep


def main() -> None:
    """Train a small network whose weights and optimizer are divided among the ranks."""
    parser = argparse.ArgumentParser(description="Train a small network under FSDP2.")
    parser.add_argument("--iterations", type=int, default=60)
    options = parser.parse_args()

    job = everstep.init()
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(job.device)
    mesh = init_device_mesh(job.device.type, (job.world_size,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {"model": model, "optimizer": optimizer}
    checkpointer = everstep.Checkpointer(state)
    start = checkpointer.load(state)
    print(f"rank {job.rank} of {job.world_size} starts after iteration {start}")

    for iteration in range(start + 1, options.iterations + 1):
        torch.manual_seed(iteration * job.world_size + job.rank)
        inputs = torch.randn(32, 16, device=job.device)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpointer.save(iteration, state)
        everstep.report(loss=job.mean(loss.item()))
    checkpointer.finish(state)
    everstep.results(iterations=options.iterations)
    print(f"done after {options.iterations} iterations")


if __name__ == "__main__":
    main()
