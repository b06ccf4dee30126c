"""A survivor whose round ends when its DataLoader has started one of two processes: `starting_reader_script.py OUT`.

It writes what the next round has read, and how many processes the first one has left.
"""

import json
import multiprocessing
import multiprocessing.context
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path

from torch.utils.data import DataLoader

from everstep.reentry import _Rounds
from everstep.runtime.protocol.survivor_link import RoundEnded
from everstep.training import enter
from tests.training.kept_reader_script import Link

OUT = Path(sys.argv[1])
BATCHES = 6
KNOCKS_S = 0.2
"""Longer than between two interruptions of the main thread."""


class Starting(multiprocessing.context.ForkProcess):
    """The first one that is started ends the round."""

    first = True

    def start(self) -> None:
        super().start()
        if Starting.first:
            Starting.first = False
            LINK.messages.put((RoundEnded(1), []))
            ROUNDS._over.wait()
            threading.Event().wait(KNOCKS_S)


class Context(multiprocessing.context.ForkContext):
    """Of the processes that read."""

    Process = Starting


def read() -> None:
    """One round."""
    enter(0, timedelta(minutes=1), ROUNDS.kept, ROUNDS.sockets)
    loader = DataLoader(range(BATCHES), batch_size=1, num_workers=2, multiprocessing_context=Context())  # type: ignore[arg-type]
    READ[:] = [number for batch in loader for number in batch.tolist()]


READ: list[int] = []
os.environ["EVERSTEP_ROUND"] = "1"
LINK = Link()
ROUNDS = _Rounds(LINK)  # type: ignore[arg-type]

if __name__ == "__main__":
    assert not ROUNDS.run(read)
    ROUNDS.leave()
    left = multiprocessing.active_children()
    ROUNDS.take_seat()
    assert ROUNDS.run(read)
    OUT.write_text(json.dumps({"read": READ, "left": len(left)}))
    os._exit(0)
