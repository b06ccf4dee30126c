"""A survivor whose agent ends the round within an iteration, and has lost no rank: `last_iteration_script.py OUT`.

It writes the iterations that it has ended, round by round.
"""

import json
import os
import queue
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

import everstep
from everstep.reentry import _Rounds
from everstep.runtime.protocol.survivor_link import LastIteration, Left, NextRound
from everstep.session import round_ends
from everstep.training import enter

ENDED: list[list[int]] = []


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


def train(link: Link) -> None:
    """Three iterations. In the second of the first round, the agent ends the round."""
    ENDED.append([])
    batches = everstep.loader(list(range(100)), global_batch=2, iterations=3)
    for batch in batches:
        if len(ENDED) == 1 and batch.iteration == 2:
            link.messages.put((LastIteration(1), []))
            assert round_ends.wait(60), "the listener has not heard it"
        assert torch.is_tensor(batch.data)
        ENDED[-1].append(batch.iteration)


def main() -> None:
    """Two rounds."""
    os.environ["EVERSTEP_ROUND"] = "1"
    link = Link()
    rounds = _Rounds(link)  # type: ignore[arg-type]

    def run() -> None:
        enter(0, timedelta(minutes=1), rounds.kept, rounds.sockets)
        train(link)

    assert not rounds.run(run)
    rounds.leave()
    rounds.take_seat()
    assert rounds.run(run)
    Path(sys.argv[1]).write_text(json.dumps(ENDED))
    os._exit(0)


if __name__ == "__main__":
    main()
