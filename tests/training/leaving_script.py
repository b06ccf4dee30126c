"""A survivor whose agent answers `Left` with the next round before the worker has gone on: it must take the seat.

It says how its uncaught errors would be reported in the next round.
"""

import os
import queue
import sys
import threading
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from everstep.group_sockets import GroupSockets
from everstep.reentry import _Rounds
from everstep.runtime.protocol.survivor_link import Left, NextRound, RoundEnded, Seated
from everstep.session import is_aborted

TIMEOUT_S = 30.0


class Link:
    """The agent, which answers at once."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[tuple[Any, list[int]]] = queue.SimpleQueue()
        self._read = threading.Semaphore(0)
        self.seated = 0
        self._messages.put((RoundEnded(1), []))

    def receive(self) -> tuple[Any, list[int]]:
        """The next message; asked for again, the one before was handled."""
        self._read.release()
        return self._messages.get()

    def send(self, message: Any) -> None:
        """`Left` returns only when the next round's seat was handled."""
        if isinstance(message, Left):
            for _ in range(2):  # It has asked for its first message, and for the one after RoundEnded.
                assert self._read.acquire(timeout=TIMEOUT_S)
            self._messages.put((NextRound(2, {}, False), []))
            assert self._read.acquire(timeout=TIMEOUT_S)
        if isinstance(message, Seated):
            self.seated = message.round


def main() -> None:
    """Leave a round and take the next one's seat, or say that it waits for ever."""
    os.environ["EVERSTEP_ROUND"] = "1"
    threading.Timer(TIMEOUT_S, lambda: os._exit(9)).start()
    link = Link()
    was_told, cut = list[bool](), GroupSockets.cut

    def cut_and_look(self: GroupSockets) -> None:
        was_told.append(is_aborted.is_set())
        cut(self)

    GroupSockets.cut = cut_and_look
    rounds = _Rounds(link)  # type: ignore[arg-type]
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    assert sys.excepthook is not sys.__excepthook__
    rounds.leave()
    rounds.take_seat()
    assert sys.excepthook is sys.__excepthook__, "torch's hook of the last round stays"
    assert was_told == [True], "saves have to know it before a collective is aborted"
    assert not is_aborted.is_set(), "the next round's saves would be refused"
    sys.stdout.write(f"seated in round {link.seated}\n")
    sys.stdout.flush()
    os._exit(0 if link.seated == 2 else 1)


if __name__ == "__main__":
    main()
