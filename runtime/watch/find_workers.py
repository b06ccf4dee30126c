"""Finds the live workers of this machine by their boards. Needs neither masters nor agents."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from everstep.runtime.watch.board import read_board
from everstep.runtime.watch.board_fields import Board

SHARED_MEMORY = Path("/dev/shm")


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
        if path.suffix or (board := read_board(path)) is None:
            continue
        with suppress(OSError):
            os.kill(board.pid, 0)
            node = path.parent.name.split("-", 2)[2].rpartition("-")[0]  # agent.Agent.run names the folder.
            yield LocalWorker(node, path, board)
