"""The script of a line of `benchmarks.accept_gpu`: rank 1 is killed during a collective; rank 0 says when it leaves.

    everstep launch --standalone --nproc-per-node 2 --max-restarts 1 benchmarks/gpu_survivor.py FILE

FILE is where rank 1 writes the time at which it ends itself. With devices the collective is NCCL's.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import everstep

MARK = Path(sys.argv[1])


@everstep.main
def main(job: everstep.Context) -> None:
    values = torch.ones(1 << 20, device=job.device)
    dist.all_reduce(values)  # The group's connections are made, and nobody leaves before.
    if MARK.exists():
        return
    if job.rank:
        assert values.sum().item() == (1 << 20) * job.world_size
        MARK.write_text(f"{time.time()}")
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(values)
        values.sum().item()  # Waits for the device.
    finally:
        print(f"left {time.time() - float(MARK.read_text()):.3f}", flush=True)


main()
