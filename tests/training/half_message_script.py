"""Rank 0 waits for the end of a message of which the half is sent when rank 1 dies: `send|receive DONE_FILE`."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from everstep.gloo_waits import GlooWaits

TIMEOUT_S = 60.0
TENSOR = torch.ones(1 << 25)
"""Far more than the kernel takes at once."""
WORD = torch.tensor(os.getpid())
"""Whoever has it has also read what was said before."""


def be_sent_a_half() -> None:
    """Stop before the message comes."""
    dist.irecv(TENSOR, 0)
    dist.send(WORD, 0, tag=1)
    os.kill(os.getpid(), signal.SIGSTOP)


def send_a_half() -> None:
    """Die with the message's begin in the kernel."""
    dist.recv(WORD, 0, tag=1)
    dist.isend(TENSOR, 0)
    os.kill(os.getpid(), signal.SIGKILL)


def begin_sending() -> dist.Work | None:
    """To a rank that takes no more than its kernel does, and dies."""
    dist.recv(WORD, 1, tag=1)
    peer = psutil.Process(int(WORD))
    while peer.status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    work = dist.isend(TENSOR, 1)
    peer.kill()
    return work


def begin_receiving() -> dist.Work | None:
    """From a rank that dies at once."""
    work = dist.irecv(TENSOR, 1)
    dist.send(WORD, 1, tag=1)
    return work


def main() -> None:
    """Write how many waits had to be ended, and what was raised."""
    direction, done_path = sys.argv[1], Path(sys.argv[2])
    threading.Timer(TIMEOUT_S, lambda: os._exit(9)).start()
    dist.init_process_group("gloo")
    if os.environ["RANK"] == "1":
        (be_sent_a_half if direction == "send" else send_a_half)()
    work = (begin_sending if direction == "send" else begin_receiving)()
    assert work is not None
    ended = 0

    def end_waits() -> None:
        nonlocal ended
        waits = GlooWaits()
        time.sleep(0.5)  # gloo itself tells within some milliseconds.
        while not ended:
            ended = waits.end_forgotten()
            time.sleep(0.02)

    thread = threading.Thread(target=end_waits, daemon=True)
    thread.start()
    try:
        work.wait()
        raised = "nothing"
    except RuntimeError as error:
        raised = str(error)
    thread.join(TIMEOUT_S)
    done_path.write_text(f"{ended} {raised}")
    os._exit(0)


if __name__ == "__main__":
    main()
