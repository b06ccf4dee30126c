"""The peer of the recovery benchmark: the default Llama under torchrun, with torch.save every few iterations.

It does what a careful user would without Everstep: rank 0 saves to a temporary file and renames it; every rank loads it
after torchrun has restarted the workers. Each finished iteration is a line of JSON in FOLDER/iterations.jsonl.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from everstep.runtime.data import Sampler, open_dataset, sample_count
from everstep.steps.train.llama import build_model

LENGTH, BATCH = 96, 8


def main(dataset: str, folder: Path, iterations: int, save_every: int) -> None:
    """Train; continue from FOLDER/state.pt if it exists."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = open_dataset(dataset)
    model = build_model("tiny", data.vocab_size, 0, data.eod)
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = data.tokens
    sampler = Sampler(sample_count(len(tokens), LENGTH), BATCH, 0)
    state_file, iteration_before = folder / "state.pt", 0
    if state_file.exists():
        state = torch.load(state_file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        iteration_before = state["iteration"]
    for iteration in range(iteration_before + 1, iterations + 1):
        share = sampler.share((iteration - 1) * BATCH, rank, world_size)
        rows = torch.stack([torch.tensor(tokens[i * LENGTH : i * LENGTH + LENGTH + 1].astype("int64")) for i in share])
        logits = replica(input_ids=rows[:, :-1], use_cache=False).logits
        cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            if iteration % save_every == 0:
                fresh = state_file.with_suffix(".fresh")
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": iteration}
                torch.save(state, fresh)
                fresh.replace(state_file)
            with (folder / "iterations.jsonl").open("a") as file:
                file.write(json.dumps({"iteration": iteration, "time": time.time()}) + "\n")
        (folder / f"pid-{rank}").write_text(str(os.getpid()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
