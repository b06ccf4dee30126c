"""A data-parallel training with Paddle that continues with as many trainers as are left.

The job's spec has `frameworkType: paddle`, so PADDLE_TRAINER_ID and the like say which trainer this is. A batch is
divided among the trainers of the round, whatever their number: the loss stays what one trainer would have.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import paddle  # pyright: ignore[reportMissingImports]
import paddle.distributed as dist  # pyright: ignore[reportMissingImports]

BATCH, FEATURES = 12, 8
"""BATCH is a multiple of 2, 3 and 4 trainers."""


def samples(iteration: int) -> tuple[np.ndarray, np.ndarray]:
    """The batch of an iteration. A real training reads it."""
    features = np.random.default_rng(iteration).standard_normal((BATCH, FEATURES)).astype("float32")
    return features, np.sin(features.sum(axis=1, keepdims=True))


def restore(model: paddle.nn.Layer, file: Path) -> int:
    """The iteration in the file, 0 without one. Every trainer reads it, so all begin with the same state."""
    if not file.exists():
        return 0
    with np.load(file) as state:
        model.set_state_dict({name: state[name] for name in model.state_dict()})
        return int(state["iteration"])


def save(model: paddle.nn.Layer, file: Path, iteration: int) -> None:
    """Replace the file at once: a trainer may die while it writes."""
    draft = file.with_name("draft.npz")
    np.savez(draft, iteration=iteration, **{name: value.numpy() for name, value in model.state_dict().items()})
    os.replace(draft, file)


def main() -> None:
    """Train to the last iteration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="the checkpoint, where all nodes see it")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--iteration-seconds", type=float, default=0.0, help="longer iterations")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / "model.npz"
    paddle.set_device("cpu")
    os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"  # Without it Paddle has no group of CPUs.
    dist.init_parallel_env()
    rank, world = dist.get_rank(), dist.get_world_size()
    paddle.seed(0)
    model = paddle.nn.Sequential(paddle.nn.Linear(FEATURES, 16), paddle.nn.Tanh(), paddle.nn.Linear(16, 1))
    optimizer = paddle.optimizer.SGD(0.05, parameters=model.parameters())
    first = restore(model, file) + 1
    print(f"trainer {rank} of {world} begins with iteration {first}", flush=True)
    for iteration in range(first, options.iterations + 1):
        features, labels = (paddle.to_tensor(part[rank::world]) for part in samples(iteration))
        loss = ((model(features) - labels) ** 2).sum() / BATCH
        loss.backward()
        total = loss.detach()
        for value in (total, *(parameter.grad for parameter in model.parameters())):
            dist.all_reduce(value)
        optimizer.step()
        optimizer.clear_grad()
        time.sleep(options.iteration_seconds)
        if rank == 0 and (iteration % options.save_every == 0 or iteration == options.iterations):
            save(model, file, iteration)
        print(f"iteration {iteration} trainers {world} loss {float(total):.6f}", flush=True)


if __name__ == "__main__":
    main()
