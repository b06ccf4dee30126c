"""Finds the live workers of this machine by their boards. Needs neither masters nor agents."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from everstep.runtime.watch.board import read_board
from everstep.runtime.watch.board_fields import Board

SHARED_MEMORY = Path("/dev/shm")
_PIDS = 1 << 22
"""Linux gives smaller process ids (PID_MAX_LIMIT)."""


class LocalWorker(NamedTuple):
    """A live worker of this machine."""

    node: str
    path: Path
    """Its board's file."""
    board: Board


def local_workers(folder: Path = SHARED_MEMORY) -> list[LocalWorker]:
    """The live workers that this user may see, by job and rank, each rank once.

    Boards of workers that have ended do not count, nor does a worker of an earlier round that has not ended yet where
    another one has its rank, such as one that is stopped.
    """
    in_order = sorted(_workers(folder), key=lambda worker: (worker.board.job, worker.board.rank, worker.board.round))
    return list({(worker.board.job, worker.board.rank): worker for worker in in_order}.values())


def _workers(folder: Path) -> Iterator[LocalWorker]:
    for path in folder.glob(".everstep-*/board-*"):
        words = path.parent.name.split("-", 2)  # agent.Agent.run names the folder.
        if path.suffix or len(words) < 3 or (board := read_board(path)) is None:
            continue
        with suppress(OSError):
            if _is_of(path, board.pid):
                os.kill(board.pid, 0)
                yield LocalWorker(words[2].rpartition("-")[0], path, board)


def _is_of(path: Path, pid: int) -> bool:
    """Whether the file and its folder belong to the user of that process: anybody may write here. Raises OSError."""
    if not 0 < pid < _PIDS:
        return False
    owners = (path.lstat(), path.parent.lstat(), Path("/proc", str(pid)).stat())
    return len({owner.st_uid for owner in owners}) == 1
