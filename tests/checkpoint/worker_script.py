"""A worker of the kill tests: trains, stages every iteration, writes its final weights.

`worker_script.py ITERATIONS RESULT WAY`: its copies end before a save returns ("before"), or run "beside" training on a
device of threads.
"""

import sys
from collections.abc import Sequence

import torch

from everstep.runtime import faults
from everstep.runtime.checkpoint.shard.device_copies import Copying, Gather, Pairs
from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from everstep.runtime.protocol.worker_link import Link
from tests.checkpoint.threaded_device import ThreadedDevice


class Device(ThreadedDevice):
    """It may die between two copies of a save."""

    saves = 0

    def begin(self, pairs: Pairs, gathers: Sequence[Gather], at_once: Pairs = ()) -> Copying:
        self.saves += 1
        super().begin(pairs[::2], [], at_once)
        self.copies.queue(lambda save=self.saves: faults.point("script.between_copies", iteration=save))
        return super().begin(pairs[1::2], gathers)


def main(iterations: int, result: str, way: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 4000), torch.nn.Tanh(), torch.nn.Linear(4000, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = {"model": model, "optimizer": optimizer}
    device = Device(0, trains_here=True) if way == "beside" else None
    checkpointer = Checkpointer(state, keeper=Link.from_environment(), copies=lambda _: device)
    for iteration in range(checkpointer.load(state) + 1, iterations + 1):
        torch.manual_seed(iteration)
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpointer.beacon(iteration, "save")
        checkpointer.save(iteration, state)
    checkpointer.finish(state)
    torch.save(model.state_dict(), result)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
