"""A worker of the kill tests: trains, stages every iteration, writes its final weights."""

import sys

import torch

from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from everstep.runtime.protocol.worker_link import Link


def main(iterations: int, result: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 400), torch.nn.Tanh(), torch.nn.Linear(400, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = {"model": model, "optimizer": optimizer}
    checkpointer = Checkpointer(state, keeper=Link.from_environment())
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
    main(int(sys.argv[1]), sys.argv[2])
