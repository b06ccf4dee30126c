"""A script of `everstep launch` that survives rounds, and trains until it is told to stop."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

import everstep


def build() -> torch.nn.Linear:
    """The model."""
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4)


@everstep.main
def main(job: everstep.Context) -> None:
    """Rank 0 writes each iteration down as `scripts` of other launches do: restarts, world size, iteration, process."""
    folder = Path(__file__).parent
    state = {"model": job.keep(build)}
    checkpointer = everstep.Checkpointer(state)
    iteration = checkpointer.load(state)
    stop = torch.zeros(1)
    with (folder / "lines").open("a") as lines:
        while not stop:
            iteration += 1
            stop[0] = job.rank == 0 and (folder / "stop").exists()
            dist.all_reduce(stop)
            with torch.no_grad():
                state["model"].weight += 1
            checkpointer.save(iteration, state)
            everstep.report(loss=0.0)
            if job.rank == 0 and not job.rehearses:
                restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
                lines.write(f"{restarts} {job.world_size} {iteration} {os.getppid()}\n")
                lines.flush()
    checkpointer.finish(state)


main()
