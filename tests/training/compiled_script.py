"""Rounds of one process with a compiled model that it keeps, in DistributedDataParallel: `OUT` gets compile counts."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch._dynamo.utils import counters

from everstep.group_sockets import GroupSockets
from everstep.kept_values import KeptValues
from everstep.process_group import join, leave


def build() -> torch.nn.Module:
    """A small model, compiled by dynamo alone."""
    model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Tanh(), torch.nn.Linear(10, 1))
    return torch.compile(model, backend="eager")  # pyright: ignore[reportReturnType] (it is a module)


def train(kept_values: KeptValues) -> None:
    """Two iterations of a round."""
    model = kept_values.keep(build)
    replica = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        replica(torch.ones(4, 10)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """Three rounds, each with a process group of its own."""
    kept_values, sockets, counts = KeptValues(), GroupSockets(), []
    for round_ in range(3):
        os.environ["EVERSTEP_ROUND"] = str(round_)
        join(0, "gloo", timedelta(seconds=100), sockets)
        kept_values.begin_round(restores=True)
        train(kept_values)
        leave()
        counts.append(counters["stats"]["unique_graphs"])
    Path(sys.argv[1]).write_text(repr(counts))
    os._exit(0)


if __name__ == "__main__":
    main()
