"""DLRover's MNIST example: a convolutional network on pictures of digits, with a dataset of the script's own.

everstep launch --standalone --nproc-per-node 2 examples/mnist.py --num-epochs 2
python pipelines/llama_finetune.py --script examples/mnist.py --script-args "--num-epochs 2" --nodes 2
python examples/mnist.py

The pictures are drawn here: digits of 5 x 7 dots, shifted and noisy, 28 x 28 as MNIST's. Replace `Digits` by
torchvision.datasets.ImageFolder("/data/mnist_png/training", ...) to train on those.
"""

import argparse
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import everstep

DOTS = (
    "01110 10001 10011 10101 11001 10001 01110", "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111", "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010", "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110", "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110", "01110 10001 10001 01111 00001 00010 01100",
)  # fmt: skip


class Digits(Dataset[tuple[torch.Tensor, int]]):
    """Pictures (1, 28, 28) of digits, each with its digit."""

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed
        rows = [[[float(dot) for dot in row] for row in digit.split()] for digit in DOTS]
        self._shapes = torch.tensor(rows).repeat_interleave(3, 1).repeat_interleave(3, 2)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        chance = torch.Generator().manual_seed(self._seed + index)
        digit = index % 10
        picture = 0.3 * torch.randn(1, 28, 28, generator=chance)
        top, column = (int(torch.randint(most, (1,), generator=chance)) for most in (8, 14))
        picture[0, top : top + 21, column : column + 15] += self._shapes[digit]
        return picture, digit


def network() -> torch.nn.Module:
    """The layers of PyTorch's MNIST example, narrower."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Dropout(0.25), torch.nn.Flatten(), torch.nn.Linear(16 * 12 * 12, 64), torch.nn.ReLU(),
        torch.nn.Dropout(0.5), torch.nn.Linear(64, 10),
    )  # fmt: skip


def main() -> None:
    """Train, then name the accuracy on pictures that were not trained on, and the model's file."""
    parser = argparse.ArgumentParser(description="Train a convolutional network on digits.")
    parser.add_argument("--num-epochs", type=int, default=2)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--global-batch", type=int, default=32, help="pictures an iteration, over all ranks")
    parser.add_argument("--micro-batch", type=int, default=16, help="pictures a pass: fewer ranks take more passes")
    parser.add_argument("--num-workers", type=int, default=1, help="processes that read ahead, for each rank")
    options = parser.parse_args()

    job = everstep.init()
    model = network().to(job.device)
    replica = DistributedDataParallel(model) if torch.distributed.is_initialized() else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = everstep.loader(
        Digits(options.pictures, seed=1), global_batch=options.global_batch, micro_batch=options.micro_batch,
        epochs=options.num_epochs, num_workers=options.num_workers, seed=0,
    )  # fmt: skip
    state = {"model": model, "optimizer": optimizer, "batches": batches}
    checkpointer = everstep.Checkpointer(state)
    checkpointer.load(state)

    for batch in batches:
        total = 0.0  # The mean loss of this rank's pictures, weighted.
        for part in batch.parts:
            pictures, digits = part.data
            with (
                replica.no_sync()
                if isinstance(replica, DistributedDataParallel) and not part.is_last
                else nullcontext()
            ):
                loss = part.weight * cross_entropy(replica(pictures.to(job.device)), digits.to(job.device))
                loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        checkpointer.save(batch.iteration, state)
        everstep.report(loss=job.mean(total))
    checkpointer.finish(state)

    if job.rank == 0:
        pictures, digits = zip(*[Digits(500, seed=100_000)[index] for index in range(500)], strict=True)
        model.eval()
        with torch.inference_mode():
            right = model(torch.stack(pictures).to(job.device)).argmax(1).cpu() == torch.tensor(digits)
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), file := Path(folder, "mnist.pt"))
            everstep.results(accuracy=right.float().mean(), model=file)


if __name__ == "__main__":
    main()
