"""The script of lines of `benchmarks.accept_gpu`: rank 1 is killed during a collective; rank 0 says when it leaves.

    everstep launch --standalone --nproc-per-node 2 --max-restarts 1 benchmarks/gpu_survivor.py FILE [SECONDS]

FILE gets the time of the fault: at which rank 1 ends itself. With SECONDS it stays away instead, and the fault is that
the collective exceeds this timeout. With devices the collective is NCCL's.
"""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import everstep

MARK = Path(sys.argv[1])
TIMEOUT_S = float(sys.argv[2]) if sys.argv[2:] else 0.0
AWAY_S = 150.0


@everstep.main(timeout=timedelta(seconds=TIMEOUT_S or 600.0))
def main(job: everstep.Context) -> None:
    values = torch.ones(1 << 20, device=job.device)
    is_over = MARK.exists()
    dist.all_reduce(values)  # The group's connections are made, and nobody leaves before.
    assert values.sum().item() == (1 << 20) * job.world_size
    if is_over:
        return
    if job.rank and TIMEOUT_S:
        time.sleep(AWAY_S)  # The end of the round interrupts it.
        raise TimeoutError("nobody has ended the round")
    if job.rank or TIMEOUT_S:
        MARK.write_text(f"{time.time() + TIMEOUT_S}")
    if job.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(values)
        values.sum().item()  # Waits for the device.
    finally:
        print(f"left {time.time() - float(MARK.read_text()):.3f}", flush=True)


main()
