"""Promises about the brain, the agent's talk with its master, and the memory of peers."""

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator

from benchmarks.acceptance import Line
from tests.job.liveness import explore_all

JOB, AGENT, CHECKPOINT = "tests/job/", "tests/agent/", "tests/checkpoint/"
LATE, HANG = f"{JOB}test_late_messages.py", f"{JOB}test_hang.py"
FORGIVING, COPIES = f"{JOB}test_forgiving.py", f"{CHECKPOINT}test_copies.py"
PROVEN: dict[str, tuple[str, ...]] = {
    "brain: a late or repeated message is recognised and changes nothing": (LATE,),
    "brain: a node whose heartbeat contradicts its seat is told again": (f"{LATE}::told_to_join_again_until",),
    "brain: a round whose ranks never move is a hang, after its own limit from the start": (
        f"{HANG}::never_move_hangs", f"{HANG}::never_comes_into", f"{AGENT}test_agent_watching.py::first_movement",
    ),
    "brain: every job of the sequences in `make test` reaches an end; replay equal at any cut": (
        f"{JOB}test_liveness.py",
    ),
    "brain: the sequences find a stranded node where these rules are taken away": (
        f"{JOB}test_liveness.py::never_takes_its_seat",
    ),
    "brain: no two rounds at once, restores whole, snapshots and journal lead to the same state": (
        f"{JOB}test_job_properties.py",
    ),
    "brain: a stopped job that is taken up again asks for its nodes": (f"{FORGIVING}::taken_up_again",),
    "brain: a master frozen while a round forms forgives": (f"{FORGIVING}::frozen",),
    "brain: after a takeover a leaving node stays while others read from it": (
        f"{JOB}test_leaving.py::after_a_takeover",
    ),
    "checkpoints: outcomes of copies to the store do not pile up": (f"{CHECKPOINT}test_persist.py",),
    "checkpoints: a peer that swallows packets is given up and told": (
        f"{COPIES}::says_nothing", f"{COPIES}::silent_peer", f"{COPIES}::gets_on",
        f"{AGENT}test_shard_server.py::gets_on",
    ),
}  # fmt: skip
"""Promise -> the tests that prove it, in the words of `acceptance.proven`."""
LIVENESS = "brain: 10^6 random sequences on a bad network, then a fair one: every job ends"
SEQUENCES, SEED = 1_000_000, 1


def liveness(_: argparse.Namespace) -> Iterator[Line]:
    """As `make liveness`: 2 hours of one core."""
    began, count_done, broken, happened = time.monotonic(), 0, list[tuple[int, str]](), Counter[str]()
    for count, fired, outcomes in explore_all(SEED, SEQUENCES, os.cpu_count() or 1):
        count_done, broken = count_done + count, broken + outcomes
        happened.update(fired)
    rate = count_done / (time.monotonic() - began)
    repeated = happened["repeated"]
    measured_text = (
        f"{count_done} of seed {SEED}, {len(broken)} broken, {repeated} messages came twice, {rate:.0f} a second"
    )
    if broken:
        measured_text += f"; the first: --only {broken[0][0]}: {broken[0][1]}"
    yield Line(LIVENESS, "none broken", measured_text, count_done == SEQUENCES and not broken)


MEASURED: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {LIVENESS: liveness}
