"""A survivor that keeps a DataLoader with a worker, and is interrupted while it reads: `kept_reader_script.py OUT`.

It writes the processes that have read, round by round.
"""

import json
import os
import queue
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset

from everstep.reentry import _Rounds
from everstep.runtime.protocol.survivor_link import Left, NextRound, RoundEnded
from everstep.training import enter

READ: list[list[int]] = []


class Link:
    """The agent."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[tuple[Any, list[int]]] = queue.SimpleQueue()

    def receive(self) -> tuple[Any, list[int]]:
        """The next message."""
        return self.messages.get()

    def send(self, message: Any) -> None:
        """Answers `Left` with the next round."""
        if isinstance(message, Left):
            self.messages.put((NextRound(message.round + 1, {"EVERSTEP_ROUND": str(message.round + 1)}, True), []))


class Readers(Dataset[int]):
    """The process that reads."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def make_loader() -> DataLoader[int]:
    """With a worker that stays."""
    return DataLoader(Readers(), batch_size=2, num_workers=1, persistent_workers=True, multiprocessing_context="fork")


def main() -> None:
    """Two rounds."""
    os.environ["EVERSTEP_ROUND"] = "1"
    link = Link()
    rounds = _Rounds(link)  # type: ignore[arg-type]

    def read() -> None:
        job = enter(0, timedelta(minutes=1), rounds.kept, rounds.sockets)
        READ.append([])
        for number, batch in enumerate(job.keep(make_loader)):
            READ[-1] += batch.tolist()
            if len(READ) == 1 and number == 3:
                link.messages.put((RoundEnded(1), []))
            if len(READ) == 2 and number == 3:
                return

    assert not rounds.run(read)
    rounds.leave()
    rounds.take_seat()
    assert rounds.run(read)
    Path(sys.argv[1]).write_text(json.dumps([os.getpid(), *(sorted(set(pids)) for pids in READ)]))
    os._exit(0)


if __name__ == "__main__":
    main()
