"""A convolutional network on pictures that the script draws itself: a loop and data of its own, with checkpoints.

python pipelines/llama_finetune.py --script examples/cnn.py --script-args "--width 8" --iterations 60
everstep launch --standalone --nproc-per-node 2 examples/cnn.py --iterations 60
python examples/cnn.py
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import everstep

SIZE, CLASSES = 12, 4


def draw(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy pictures (count, 1, SIZE, SIZE) with a bright square in one quadrant, and its number, 0 to 3 (count,)."""
    chance = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=chance)
    pictures = torch.randn(count, 1, SIZE, SIZE, generator=chance)
    half = SIZE // 2
    for picture, label in zip(pictures, labels.tolist(), strict=True):
        top, column = divmod(label, 2)
        picture[0, top * half : (top + 1) * half, column * half : (column + 1) * half] += 0.7
    return pictures, labels


def main() -> None:
    """Train, then name the accuracy on pictures that were not trained on, and the model's file."""
    parser = argparse.ArgumentParser(description="Train a small convolutional network.")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--global-batch", type=int, default=8, help="pictures an iteration, over all ranks")
    parser.add_argument("--width", type=int, default=4, help="channels of the convolution")
    options = parser.parse_args()

    job = everstep.init()
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, options.width, 3), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(options.width * (SIZE - 2) ** 2, CLASSES),
    ).to(job.device)  # fmt: skip
    replica = DistributedDataParallel(network) if torch.distributed.is_initialized() else network
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    state = {"model": network, "optimizer": optimizer}
    checkpointer = everstep.Checkpointer(state)
    start = checkpointer.load(state)  # 0, or the iteration that the state is of.

    for iteration in range(start + 1, options.iterations + 1):
        pictures, labels = draw(options.global_batch, seed=iteration)  # The same for every rank, which takes its share.
        mine = slice(job.rank, None, job.world_size)
        loss = cross_entropy(replica(pictures[mine].to(job.device)), labels[mine].to(job.device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpointer.save(iteration, state)
        everstep.report(loss=loss.item())
    checkpointer.finish(state)

    if job.rank == 0:
        pictures, labels = draw(400, seed=0)
        with torch.inference_mode():
            right = network(pictures.to(job.device)).argmax(1).cpu() == labels
        with tempfile.TemporaryDirectory() as folder:
            torch.save(network.state_dict(), file := Path(folder, "cnn.pt"))
            everstep.results(accuracy=right.float().mean(), model=file)


if __name__ == "__main__":
    main()
