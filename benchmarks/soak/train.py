"""A small model whose gradients are summed exactly, so its weights do not depend on how many ranks there were.

Each sample's gradient is computed by itself and rounded to a multiple of 2^-30; sums of such integers have no order.
"""

import argparse
import threading
from pathlib import Path

import torch
import torch.distributed
from torch.nn.functional import cross_entropy

import everstep
from everstep.runtime.data import open_dataset

SCALE = 2.0**30


class Momentum:
    """Stochastic gradient descent with momentum, over exact sums."""

    def __init__(self, model: torch.nn.Module, samples: int) -> None:
        self._parameters, self._samples = list(model.parameters()), samples
        self._velocities = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._sums = [torch.zeros(parameter.shape, dtype=torch.int64) for parameter in self._parameters]

    def add(self) -> None:
        """Add the gradient of one sample."""
        for parameter, total in zip(self._parameters, self._sums, strict=True):
            assert parameter.grad is not None
            total.add_((parameter.grad.double() * SCALE).round().long())
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Mean over all ranks' samples."""
        for parameter, velocity, total in zip(self._parameters, self._velocities, self._sums, strict=True):
            if torch.distributed.is_initialized():
                torch.distributed.all_reduce(total)
            velocity.mul_(0.9).add_((total.double() / SCALE / self._samples).float())
            parameter.sub_(velocity, alpha=0.05)
            total.zero_()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """By number of the parameter."""
        return {str(number): velocity for number, velocity in enumerate(self._velocities)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """From a checkpoint."""
        for number, velocity in enumerate(self._velocities):
            velocity.copy_(state[str(number)])


def arguments() -> argparse.Namespace:
    """The flags that the step passes, and those of the soak."""
    parser = argparse.ArgumentParser()
    for name in ("iterations", "sequence-length", "global-batch", "seed"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--dataset")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each iteration waits")
    parser.add_argument("--sample-pause", type=float, default=0.0, help="the same of each sample, as a device would")
    parser.add_argument("--last", type=Path, help="a file that names the last iteration, once it is known")
    return parser.parse_known_args()[0]


def train(job: everstep.Context) -> None:
    """Train to the last iteration, from the newest checkpoint if there is one."""
    options = arguments()
    vocabulary = open_dataset(options.dataset).vocab_size
    torch.manual_seed(options.seed)
    model = torch.nn.Sequential(
        torch.nn.Embedding(vocabulary, 32), torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, vocabulary)
    )
    momentum = Momentum(model, options.global_batch)
    batches = everstep.batches(
        options.dataset,
        sequence_length=options.sequence_length,
        global_batch=options.global_batch,
        seed=options.seed,
        iterations=options.iterations,
    )
    state = {"model": model, "momentum": momentum, "batches": batches}
    checkpointer = everstep.Checkpointer(state)
    checkpointer.load(state)
    for batch in batches:
        threading.Event().wait(options.pause)
        losses = []
        for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
            threading.Event().wait(options.sample_pause)
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            momentum.add()
            losses.append(loss.item())
        momentum.step()
        checkpointer.save(batch.iteration, state)
        everstep.report(loss=sum(losses) / max(1, len(losses)))
        if options.last and options.last.exists() and int(options.last.read_text()) <= batch.iteration:
            break
    checkpointer.finish(state)


if __name__ == "__main__":
    train(everstep.init())
