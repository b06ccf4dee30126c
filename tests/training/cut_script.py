"""Rank 0 waits for rank 1, which lives and does not come, while its groups' sockets are cut: `WAIT DONE_FILE`.

With WAIT `lost packets` nobody cuts them; rank 1 enters the control group GROUP, whose packets may be dropped.
"""

import os
import socket
import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from everstep import group_sockets
from everstep.group_sockets import GroupSockets
from everstep.process_group import join

LONG = timedelta(seconds=200)
LOST = "lost packets"


def wait_for_peer(where: str) -> None:
    """Wait for rank 1 there."""
    match where:
        case "collective" | "lost packets":
            dist.all_reduce(torch.ones(1))
        case "store":
            dist.distributed_c10d._get_default_store().get("a key that nobody sets")
        case "new group":
            dist.new_group([0, 1])


def wait_for_loss(rank: int, done_path: Path, over: threading.Event) -> None:
    """Say that this rank has joined, and wait until the packets between the ranks are dropped."""
    done_path.with_suffix(f".{rank}").touch()
    while not done_path.with_suffix(".lost").exists():
        over.wait(0.01)


def main() -> None:
    """Write what was raised, and what a connection of the script's own still carries."""
    where, done_path = sys.argv[1], Path(sys.argv[2])
    rank, sockets = int(os.environ["RANK"]), GroupSockets()
    if where == LOST:
        group_sockets.GIVE_UP_S = 1.0
        if rank:  # A socket belongs to the control group in which it was made.
            Path(os.environ["GROUP"], "cgroup.procs").write_text(str(os.getpid()))
    listener = socket.create_server(("127.0.0.1", 0))
    mine = socket.create_connection(listener.getsockname())
    theirs, _ = listener.accept()
    sockets.watch_new_groups()
    join(rank, "gloo", LONG, sockets)
    dist.all_reduce(torch.ones(1))
    over = threading.Event()
    if where == LOST:
        wait_for_loss(rank, done_path, over)
    if rank:
        while not done_path.exists():
            over.wait(0.01)
        os._exit(0)

    def cut() -> None:
        while not over.wait(0.01):
            sockets.cut()

    if where != LOST:
        threading.Thread(target=cut, daemon=True).start()
    try:
        wait_for_peer(where)
        raised = "nothing"
    except RuntimeError as error:
        raised = "Connection timed out" if "Connection timed out" in str(error) else type(error).__name__
    over.set()
    mine.sendall(b"own")
    done_path.with_suffix(".new").write_text(f"{raised} {theirs.recv(3).decode()}")
    done_path.with_suffix(".new").rename(done_path)
    os._exit(0)


if __name__ == "__main__":
    main()
