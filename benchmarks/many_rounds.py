"""A survivor of many rounds, whose agent ends each while the ranks are in a collective: what it holds after each.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python -m benchmarks.many_rounds 500 lines

Rank 0 writes a line of JSON a round. A round that lasts longer than `TIMEOUT_S` ends its process, with every thread's
stack on stderr.
"""

import faulthandler
import json
import os
import queue
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import everstep
from everstep.reentry import _Rounds
from everstep.runtime.protocol.survivor_link import Left, NextRound, RoundEnded
from everstep.training import enter

TIMEOUT_S = 60.0
WHILE_SETTLING, LAST = slice(50, 100), slice(-50, None)
MORE_MIB = 8
"""Less than two of the script's models."""


class Link:
    """The agent: answers `Left` with the next round."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[tuple[Any, list[int]]] = queue.SimpleQueue()

    def receive(self) -> tuple[Any, list[int]]:
        """The next message."""
        return self._messages.get()

    def end(self, round_: int) -> None:
        """The round is over."""
        self._messages.put((RoundEnded(round_), []))

    def send(self, message: Any) -> None:
        """What a worker says."""
        if isinstance(message, Left):
            number = message.round + 1
            self._messages.put((NextRound(number, {"EVERSTEP_ROUND": str(number)}, True), []))


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model of 4 MB, so that one that stays behind is seen."""
    model = torch.nn.Linear(1024, 1024)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(job: everstep.Context, link: Link) -> None:
    """Some iterations; the last never ends."""
    model, optimizer = job.keep(build)
    parallel = DistributedDataParallel(model)
    for iteration in range(1 << 30):
        if iteration == 2:
            link.end(job.round)
        parallel(torch.ones(1, 1024)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def count_resources() -> Mapping[str, int]:
    """By this process."""
    process = psutil.Process()
    return {
        "files": process.num_fds(), "threads": process.num_threads(), "memory_mib": process.memory_info().rss >> 20
    }  # fmt: skip


def left_behind(lines: Path) -> list[str]:
    """What the process held more of in its last rounds than once it had settled. There are at least 150 lines."""
    rounds = [json.loads(line) for line in lines.read_text().splitlines()]
    kinds: list[str] = []
    for name, more in (("files", 0), ("threads", 0), ("memory_mib", MORE_MIB)):
        settled, last = ([round_[name] for round_ in rounds[part]] for part in (WHILE_SETTLING, LAST))
        if min(last) > max(settled) + more:
            kinds.append(f"{name}: at most {max(settled)} in rounds 50 to 100, at least {min(last)} in the last 50")
    return kinds


def main(rounds: int, lines: Path) -> None:
    """Survive so many rounds."""
    os.environ["EVERSTEP_ROUND"] = "1"
    link = Link()
    own = _Rounds(link)  # type: ignore[arg-type]
    with lines.open("a") as file:
        for _ in range(rounds):
            faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)
            assert not own.run(lambda: train(enter(0, timedelta(minutes=1), own.kept, own.sockets), link))
            own.leave()
            own.take_seat()
            faulthandler.cancel_dump_traceback_later()
            if os.environ["RANK"] == "0":
                file.write(json.dumps(count_resources()) + "\n")
                file.flush()
    assert not dist.is_initialized()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
