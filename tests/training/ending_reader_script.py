"""A survivor whose round ends while a DataLoader of it reads: `ending_reader_script.py OUT WHERE`.

WHERE: `loop` (in the loop's body, while a process is in the middle of a sample), `next` (the same, and the loop waits
for it), `reset` (a kept one is being reset), `answer` (half of an answer is received). It writes what each round has
read, whether the fault has fired, and how many processes are left after each round.
"""

import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset, _utils

from everstep.reentry import _Rounds
from everstep.runtime.agent.forkserver import die_with_parent
from everstep.runtime.protocol.survivor_link import RoundEnded
from everstep.training import enter
from tests.training.kept_reader_script import Link

OUT, WHERE, SURVIVOR = Path(sys.argv[1]), sys.argv[2], os.getpid()
BATCHES, WORKERS = 6, 2
KNOCKS_S = 0.2
"""Longer than between two interruptions of the main thread."""
STUCK = 3
"""This sample of round 1 is not read before something is written into `GATE`; a process may be killed meanwhile."""
GATE, READS = os.pipe(), multiprocessing.Event()
FIRED: list[str] = []
SEEN: list[list[int]] = []
_utils.MP_STATUS_CHECK_INTERVAL = 600.0  # So long an iterator would wait for each of its processes at its end.


class Sample:
    """One sample; the first one of round 1 ends it while it is unpickled."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __setstate__(self, state: dict[str, int]) -> None:
        if WHERE == "answer" and not FIRED:
            end_round()
            threading.Event().wait(KNOCKS_S)
        self.__dict__.update(state)
        FIRED.append("answer")


class Samples(Dataset[Any]):
    """Sample i of round r is 100 * r + i."""

    def __getitem__(self, number: int) -> Sample:
        if WHERE != "answer" and number == 100 + STUCK:
            READS.set()
            os.read(GATE[0], 1)
        return Sample(number)


class Order:
    """The batches of the present round."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([100 * ROUNDS._round + number] for number in range(BATCHES))


def end_round() -> None:
    """Wait until the main thread is about to be interrupted."""
    LINK.messages.put((RoundEnded(ROUNDS._round), []))
    ROUNDS._over.wait()


def end_round_when(function: str) -> None:
    """In a thread: when the main thread is in a function of that name, and a process in its sample."""
    READS.wait()
    while not main_thread_is_in(function):
        threading.Event().wait(0.01)
    FIRED.append(function)
    end_round()


def main_thread_is_in(function: str) -> bool:
    """Holds no frame afterwards, and so no iterator."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def make_loader() -> DataLoader[Any]:
    """Of processes that stay, unless the end of others is looked at."""
    return DataLoader(
        Samples(), batch_sampler=Order(), num_workers=WORKERS, persistent_workers=WHERE in ("reset", "answer"),
        collate_fn=lambda samples: samples[0], worker_init_fn=lambda _: die_with_parent(SURVIVOR),
        multiprocessing_context="fork",
    )  # fmt: skip


def read() -> None:
    """One round."""
    job = enter(0, timedelta(minutes=1), ROUNDS.kept, ROUNDS.sockets)
    SEEN.append([])
    ends = {("next", 1): "_try_get_data", ("reset", 2): "_reset"}.get((WHERE, ROUNDS._round))
    if ends:
        threading.Thread(target=end_round_when, args=(ends,), daemon=True).start()
    if ROUNDS._round == 3:
        os.write(GATE[1], b"1")
    for sample in job.keep(make_loader):
        SEEN[-1].append(sample.number)
        if ROUNDS._round == 1 and WHERE in ("loop", "reset"):
            READS.wait()
            FIRED.append("loop")
            end_round()
            threading.Event().wait()


os.environ["EVERSTEP_ROUND"] = "1"
LINK = Link()
ROUNDS = _Rounds(LINK)  # type: ignore[arg-type]

if __name__ == "__main__":
    left = []
    while not ROUNDS.run(read):
        ROUNDS.leave()
        left.append(len(multiprocessing.active_children()))
        ROUNDS.take_seat()
    OUT.write_text(json.dumps({"seen": SEEN, "fired": sorted(set(FIRED)), "left": left}))
    os._exit(0)
