"""Ranks that train and save without an end, to be killed at any moment: `killed_script.py JSON`.

Told are kind (ddp, fsdp, or beside: ddp whose copies run beside training, on a device of threads), agents (a socket's
path for each rank) and log. The ranks are forks of this process, which writes their pids to a file; one that dies takes
the others along. Each writes into its log the iteration that it loaded, or 0, and a digest of its part of the state
then; later those of each save.
"""

import ctypes
import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from everstep.runtime.checkpoint.state.flatten import flatten
from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from everstep.runtime.protocol.worker_link import Link
from tests.checkpoint.threaded_device import ThreadedDevice

PR_SET_PDEATHSIG = 1


def digest(state: dict[str, Any]) -> str:
    tensors = flatten(state).tensors
    return hashlib.sha256(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))).hexdigest()[:16]


def work(rank: int, instructions: dict[str, Any]) -> None:
    torch.set_num_threads(1)  # Makes torch's threads anew after the fork; backward's threads would race to.
    world_size = len(instructions["agents"])
    os.environ.update(RANK=str(rank), LOCAL_RANK="0", EVERSTEP_AGENT=instructions["agents"][rank])
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 300), torch.nn.Tanh(), torch.nn.Linear(300, 3))
    store = dist.FileStore(instructions["log"] + ".store", world_size)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    if instructions["kind"] == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = {"model": model, "optimizer": optimizer, "iteration": 0}
    device = ThreadedDevice(rank, trains_here=True) if instructions["kind"] == "beside" else None
    checkpointer = Checkpointer(state, keeper=Link.from_environment(), rank=rank, copies=lambda _: device)
    iteration = checkpointer.load(state)
    with open(f"{instructions['log']}-{rank}", "a", buffering=1) as log:
        log.write(f"loaded {iteration} {digest(state)}\n")
        assert state["iteration"] == iteration
        while True:
            iteration += 1
            torch.manual_seed(iteration)
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            state["iteration"] = iteration
            log.write(f"saves {iteration} {digest(state)}\n")
            checkpointer.save(iteration, state)


def main(instructions: dict[str, Any]) -> None:
    ranks: list[int] = []
    for rank in range(len(instructions["agents"])):
        if not (pid := os.fork()):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            try:
                work(rank, instructions)
            finally:
                os._exit(1)
        ranks.append(pid)
    pids = Path(f"{instructions['log']}.pids")
    pids.with_suffix(".part").write_text(json.dumps(ranks))
    pids.with_suffix(".part").rename(pids)
    exit_codes = []
    while len(exit_codes) < len(ranks):
        exit_codes.append(os.wait()[0])
        for pid in set(ranks) - set(exit_codes):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
