"""Rank 0 waits for rank 1, which lives and does not come, while its groups' sockets are cut: `WAIT DONE_FILE`."""

import os
import socket
import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from everstep.group_sockets import GroupSockets
from everstep.process_group import join

LONG = timedelta(seconds=200)


def wait_for_peer(where: str) -> None:
    """Wait for rank 1 there."""
    match where:
        case "collective":
            dist.all_reduce(torch.ones(1))
        case "store":
            dist.distributed_c10d._get_default_store().get("a key that nobody sets")
        case "new group":
            dist.new_group([0, 1])


def main() -> None:
    """Write what was raised, and what a connection of the script's own still carries."""
    where, done_path = sys.argv[1], Path(sys.argv[2])
    rank, sockets = int(os.environ["RANK"]), GroupSockets()
    listener = socket.create_server(("127.0.0.1", 0))
    mine = socket.create_connection(listener.getsockname())
    theirs, _ = listener.accept()
    sockets.watch_new_groups()
    join(rank, "gloo", LONG, sockets)
    dist.all_reduce(torch.ones(1))
    over = threading.Event()
    if rank:
        while not done_path.exists():
            over.wait(0.01)
        os._exit(0)

    def cut() -> None:
        while not over.wait(0.01):
            sockets.cut()

    threading.Thread(target=cut, daemon=True).start()
    try:
        wait_for_peer(where)
        raised = "nothing"
    except RuntimeError as error:
        raised = type(error).__name__
    over.set()
    mine.sendall(b"own")
    done_path.with_suffix(".new").write_text(f"{raised} {theirs.recv(3).decode()}")
    done_path.with_suffix(".new").rename(done_path)
    os._exit(0)


if __name__ == "__main__":
    main()
