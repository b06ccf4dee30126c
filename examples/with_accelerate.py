"""A loop of Hugging Face Accelerate that resumes where it was: three lines of Everstep and a loader.

everstep launch --standalone --nproc-per-node 2 examples/with_accelerate.py --iterations 40
python pipelines/llama_finetune.py --script examples/with_accelerate.py --iterations 40
"""

import argparse

import torch
from accelerate import Accelerator

import everstep


def samples(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of (x, sin x), each a tensor (1,)."""
    return [(x, torch.sin(3 * x)) for x in torch.linspace(-1, 1, count).reshape(count, 1)]


def main() -> None:
    """Fit a sine."""
    parser = argparse.ArgumentParser(description="Fit a sine with Accelerate.")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--global-batch", type=int, default=8)
    options = parser.parse_args()

    job = everstep.init()  # Before Accelerator(), which then uses this process group.
    accelerator = Accelerator(cpu=job.device.type == "cpu")
    network = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model, optimizer = accelerator.prepare(network, torch.optim.AdamW(network.parameters(), lr=1e-2))
    batches = everstep.loader(samples(128), global_batch=options.global_batch, iterations=options.iterations)
    state = {"model": accelerator.unwrap_model(model), "optimizer": optimizer.optimizer, "batches": batches}
    checkpointer = everstep.Checkpointer(state)
    checkpointer.load(state)
    for batch in batches:
        inputs, targets = (tensor.to(accelerator.device) for tensor in batch.data)
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss * batch.weight)
        optimizer.step()
        optimizer.zero_grad()
        checkpointer.save(batch.iteration, state)
        everstep.report(loss=job.mean(loss.item(), batch.weight))
    checkpointer.finish(state)


if __name__ == "__main__":
    main()
