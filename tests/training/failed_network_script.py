"""A survivor whose communicator fails within a collective that does not end: `failed_network_script.py WORD`.

With WORD `lost` a peer has ended, which the agent says at once; with `told` the agent ends the round when it is told of
the error, and with `raised`, where the collective raises one of no known kind, too; with `alone` it says nothing. What
the worker tells it is printed. With `cleaning` the round ends while the script's function ends by an error of its own.
"""

import os
import queue
import sys
import threading
from typing import Any

import torch

from everstep import reentry
from everstep.reentry import _Rounds
from everstep.runtime.protocol.survivor_link import LostConnection, RoundEnded

LEAVING, ENDED_ALONE = 7, 1


class Link:
    """The agent."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[tuple[Any, list[int]]] = queue.SimpleQueue()

    def receive(self) -> tuple[Any, list[int]]:
        """The next message."""
        return self.messages.get()

    def send(self, message: Any) -> None:
        """From the worker."""
        print(message, file=sys.stderr)
        if sys.argv[1] in ("told", "raised") and isinstance(message, LostConnection):
            self.messages.put((RoundEnded(message.round), []))


def main() -> None:
    """Ends with LEAVING if the round was left, with ENDED_ALONE if the process was ended."""
    os.environ["EVERSTEP_ROUND"] = "1"
    fails, link = threading.Event(), Link()

    def communicator_error() -> str:
        if not fails.is_set():
            return ""
        if sys.argv[1] == "lost":
            link.messages.put((RoundEnded(1), []))
        return "COMM_ERROR of default_pg on cuda"

    def local_device(local_rank: int) -> torch.device:
        return torch.device("cpu" if sys.argv[1] == "raised" else "cuda", local_rank)

    reentry.communicator_error = communicator_error
    reentry.local_device = local_device
    reentry._GRACE_S = 30.0 if sys.argv[1] == "lost" else 0.05
    reentry._SILENCE_S = 0.5 if sys.argv[1] == "alone" else 30.0
    rounds = _Rounds(link)  # type: ignore[arg-type]

    def collective() -> None:
        fails.set()
        if sys.argv[1] == "raised":
            raise RuntimeError("NCCL AllReduce failed: of no known kind")
        assert not threading.Event().wait(30.0)

    def cleaning() -> None:
        try:
            raise ValueError("a bad batch") from KeyError("no traceback of its own")
        finally:
            link.messages.put((RoundEnded(1), []))
            assert not threading.Event().wait(30.0)

    assert not rounds.run(cleaning if sys.argv[1] == "cleaning" else collective)
    os._exit(LEAVING)


if __name__ == "__main__":
    main()
