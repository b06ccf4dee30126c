"""A training with Horovod's elastic state, as its documentation writes one: `horovod_script.py ITERATIONS SECONDS`.

Each iteration takes so many seconds more. A file `last` has the number of the last iteration, and ends the waiting: it
is far enough ahead for all ranks to read it before they are there.
"""

import sys
import time
from pathlib import Path

import horovod.torch as hvd  # pyright: ignore[reportMissingImports]
import torch

BATCH, FEATURES = 12, 8
"""BATCH is a multiple of any number of ranks up to 4."""


def last_iteration() -> int:
    """What the file says; 0: there is none."""
    file = Path("last")
    return int(file.read_text()) if file.exists() else 0


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, iterations: int, seconds: float) -> None:
    """From the state's iteration to the last one, with as many ranks as there are."""
    while state.iteration < ((last := last_iteration()) or iterations):
        generator = torch.Generator().manual_seed(state.iteration)
        features = torch.randn(BATCH, FEATURES, generator=generator)[hvd.rank() :: hvd.size()]
        labels = torch.sin(features.sum(dim=1, keepdim=True))
        loss = ((state.model(features) - labels) ** 2).sum() / BATCH
        state.optimizer.zero_grad()
        loss.backward()
        for parameter in state.model.parameters():
            parameter.grad = hvd.allreduce(parameter.grad, op=hvd.Sum)
        state.optimizer.step()
        total = float(hvd.allreduce(loss.detach(), op=hvd.Sum))
        state.iteration += 1
        time.sleep(0 if last else seconds)
        if hvd.rank() == 0:
            print(f"iteration {state.iteration} ranks {hvd.size()} loss {total:.6f}", flush=True)
        state.commit()


if __name__ == "__main__":
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(hvd.elastic.TorchState(model, optimizer, iteration=0), int(sys.argv[1]), float(sys.argv[2]))
