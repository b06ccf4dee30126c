"""A small model with momentum, trained as steps/train/llama.py trains a Llama; a node's fork server has it imported in
half the time.

It uses none of torch's own ways to step, nor its switch for deterministic algorithms: those import as much again.
"""

import argparse
import atexit
import os
import sys
import threading

import torch
import torch.distributed
from torch.nn.functional import cross_entropy

import everstep
from everstep.group_sockets import _shut_down, _sockets
from everstep.runtime import faults
from everstep.runtime.data import open_dataset

ITERATION_S = 0.02
"""At least: faults at random moments are to find it training."""
SLOW_END_S = 2.0
"""So long the process that `--fail` lets fail takes to end: far longer than others wait for why it left them."""


class Momentum:
    """Stochastic gradient descent with momentum."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._velocities = [torch.zeros_like(parameter) for parameter in self._parameters]

    @torch.no_grad()
    def step(self, flips: str = "") -> None:
        """Mean of all ranks' gradients. `flips`: of what one bit changes on this rank, as a bad memory does it."""
        for parameter, velocity in zip(self._parameters, self._velocities, strict=True):
            assert parameter.grad is not None
            if torch.distributed.is_initialized():
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= torch.distributed.get_world_size()
            if flips == "gradient":
                flip_bit(parameter.grad)
            velocity.mul_(0.9).add_(parameter.grad)
            parameter.sub_(velocity, alpha=0.05)
            parameter.grad = None
            if flips in ("weights", "optimizer"):
                flip_bit(parameter if flips == "weights" else velocity)
            flips = ""

    def flip_gradient(self) -> None:
        """One bit of this rank's own, before the mean of all is taken."""
        gradient = self._parameters[0].grad
        assert gradient is not None
        flip_bit(gradient)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """By number of the parameter."""
        return {str(number): velocity for number, velocity in enumerate(self._velocities)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """From a checkpoint."""
        for number, velocity in enumerate(self._velocities):
            velocity.copy_(state[str(number)])


def flip_bit(tensor: torch.Tensor, bit: int = 20) -> None:
    """One bit of its first number that is not zero."""
    numbers = tensor.view(-1).view(torch.int32)
    numbers[numbers.nonzero()[0]] ^= 1 << bit


def build(vocabulary: int, seed: int) -> tuple[torch.nn.Module, Momentum]:
    """The model and its optimizer."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Embedding(vocabulary, 32), torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, vocabulary)
    )
    return model, Momentum(model)


def add_gradients(model: torch.nn.Module, batch: everstep.Batch, factor: float = 1.0) -> torch.Tensor:
    """Add those of this batch. Returns its mean loss, which is multiplied by the factor."""
    loss = factor * cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
    (loss * batch.weight).backward()
    return loss


def cut_connections() -> None:
    """As a network does that is interrupted: all TCP connections of this process end."""
    ended = [_shut_down(inode, file) for inode, file in _sockets().items()]
    print(f"cut {sum(ended)} connections", file=sys.stderr)


def evaluate(model: torch.nn.Module, iteration: int) -> None:
    """A rank may die here, or wait for one that did."""
    if not model.training:
        print("trains in mode evaluation", file=sys.stderr)
    model.eval()
    faults.point("script.evaluation", iteration=iteration)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    model.train()


def arguments() -> argparse.Namespace:
    """The flags that the step passes, and how the script lives."""
    parser = argparse.ArgumentParser()
    for name in ("iterations", "sequence-length", "global-batch", "seed"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--dataset")
    parser.add_argument("--survive", action="store_true", help="be entered again in each round, not started again")
    parser.add_argument(
        "--flip",
        default="0,0,",
        help="ITERATION,RANK,WHAT, in the first round; WHAT: own-gradient (not reduced), gradient, weights, optimizer",
    )
    parser.add_argument("--bad", default="0,1", help="ITERATION,FACTOR: of its loss, whatever the round")
    parser.add_argument("--cut", default="", help="ROUND,ITERATION,RANK;...: of the connections to other ranks")
    parser.add_argument("--fail", default="0,0", help="ITERATION,RANK, in the first round: after leaving its groups")
    parser.add_argument("--evaluate", action="store_true", help="the model, after each iteration")
    parser.add_argument("--pause", type=float, default=ITERATION_S, help="seconds before each iteration")
    parser.add_argument("--omit", type=int, default=0, help="the batch of this iteration is not trained on")
    return parser.parse_known_args()[0]


def train(job: everstep.Context) -> None:
    """Train to the last iteration, from the newest checkpoint if there is one."""
    options = arguments()
    print(f"process {os.getpid()} is rank {job.rank} of {job.world_size} in round {job.round}", file=sys.stderr)
    model, momentum = job.keep(build, open_dataset(options.dataset).vocab_size, options.seed)
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
    replay = everstep.Replay(model, batches, add_gradients)
    at, whose, what = options.flip.split(",")
    cuts = [tuple(map(int, cut.split(","))) for cut in options.cut.split(";") if cut]
    fails = (1, *map(int, options.fail.split(",")))
    bad, factor = options.bad.split(",")
    for batch in batches:
        threading.Event().wait(options.pause)
        if batch.iteration == options.omit:
            continue
        if (job.round, batch.iteration, job.rank) in cuts:
            cut_connections()
        if (job.round, batch.iteration, job.rank) == fails:
            torch.distributed.destroy_process_group()
            raise ValueError("the cause")
        loss = add_gradients(model, batch, float(factor) if batch.iteration == int(bad) else 1.0)
        flips = what if (job.round, batch.iteration, job.rank) == (1, int(at), int(whose)) else ""
        if flips == "own-gradient":
            momentum.flip_gradient()
        replay.check(batch)
        momentum.step(flips)
        checkpointer.save(batch.iteration, state)
        if options.evaluate:
            evaluate(model, batch.iteration)
        everstep.report(loss=job.mean(loss.item(), batch.weight))
    checkpointer.finish(state)


if __name__ == "__main__":
    if arguments().fail != "0,0":
        atexit.register(threading.Event().wait, SLOW_END_S)
    if arguments().survive:
        everstep.main(train)()
    else:
        train(everstep.init())
