"""The journal, its readers, logs and stores of a job that runs for a month: what holds, and what it takes.

Alone: `python -m benchmarks.hardening.journal [WORD...]` prints what is measured here.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from urllib3.connectionpool import HTTPConnectionPool

from benchmarks.acceptance import Line, asked
from runtime.job.checkpoints import Checkpoints, with_shard
from runtime.job.messages import Holding
from runtime.job.records import Committed, Record, ShardPersisted
from runtime.job.state import State, fold
from runtime.master import journal, segments, snapshots
from runtime.store import DirectoryStore, Store, open_store
from tests.harness import ROOT
from tests.minio import running

MASTER, STORE, WORKFLOW = "tests/master/", "tests/store/", "tests/workflow/"
PROVEN: dict[str, tuple[str, ...]] = {
    "journal: an archived number is won by nobody, whatever the turns of two masters and a claim": (
        f"{MASTER}test_archive.py", f"{MASTER}test_journal.py", f"{MASTER}test_snapshots.py",
    ),
    "journal: the ten thousandth shard of a checkpoint costs what the tenth did": ("tests/job/test_stored_shards.py",),
    "journal: a report reads what is archived, and goes on behind what is missing": (
        "tests/report/test_long_journal.py",
    ),
    "logs and telemetry of a month are bounded": (
        "tests/agent/test_rotation.py", f"{MASTER}test_telemetry_packing.py",
    ),
    "a directory store follows no link, whenever one is put in its way": (f"{STORE}test_links.py",),
    "a full disk: what was told stays, one line, the run is taken up": (f"{WORKFLOW}test_full_disk.py",),
}  # fmt: skip
SHARDS, EVENTS, RANKS = 10_000, 1_000_000, 8
WANTED_S, WANTED_REQUESTS = 1.0, 60
REPORT_S, REPORT_MB = 10.0, 200.0
IN_S3 = 20_000
"""Events of the job in MinIO: what a start asks for does not grow with them, until 1,000 blocks need a second page."""
_REPORT = """
import resource, sys, time
from runtime.report.read import read_run
from runtime.store import open_store
began = time.monotonic(), time.process_time()
told = read_run(open_store(sys.argv[1], read_only=True), "run", uid="u").jobs["j"]
took = time.monotonic() - began[0], time.process_time() - began[1]
print(*took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, len(told.commits))
"""


def shards(_: argparse.Namespace) -> Iterator[Line]:
    """One checkpoint of many shards, shard after shard."""
    took = []
    for _attempt in range(3):
        known: Checkpoints = {}
        began = time.process_time()
        for shard in range(SHARDS):
            held = Holding(1, 50, shard=shard, shards=SHARDS, size=1, key=f"k/{shard}", digest="0" * 32)
            known = with_shard(known, held)
        took.append(time.process_time() - began)
    yield Line(FOLDED, "<= 0.1 s", f"{min(took):.3f} s of one core", min(took) <= 0.1)


def started(options: argparse.Namespace) -> Iterator[Line]:
    """Start and takeover of a long job, and its report, in a directory; what a takeover asks an S3 store for."""
    with tempfile.TemporaryDirectory(dir=_memory(), prefix="everstep-journal-") as folder:
        store = DirectoryStore(folder)
        grow(store, EVENTS)
        found = _seconds(lambda: journal.find_master(store, JOB))
        claimed = _seconds(lambda: journal.claim(store, JOB, "127.0.0.1:2", time.time()))
        size = sum(entry.size for entry in store.list(f"jobs/{JOB}/")) / 1e6
        told = (
            f"find {found:.3f} s, take over {claimed:.3f} s; {len(segments.numbers(store, JOB))} listed, {size:.0f} MB"
        )
        yield Line(TAKEN, f"<= {WANTED_S:.0f} s", told, max(found, claimed) <= WANTED_S)
        yield from reported(folder)
    yield from requests(options)


def reported(folder: str) -> Iterator[Line]:
    """The report's reading, in a process of its own."""
    run = subprocess.run([sys.executable, "-c", _REPORT, folder], cwd=ROOT, capture_output=True, text=True, check=True)
    elapsed, seconds, mb, commits = map(float, run.stdout.split())
    holds = seconds <= REPORT_S and mb <= REPORT_MB and commits == EVENTS // (RANKS + 1)
    yield Line(
        TOLD,
        f"<= {REPORT_S:.0f} s, {REPORT_MB:.0f} MB",
        f"{seconds:.1f} s of one core, {elapsed:.1f} s elapsed, {mb:.0f} MB",
        holds,
    )


def requests(_: argparse.Namespace) -> Iterator[Line]:
    """Requests of opening the store, a takeover and a look for the master, at a real MinIO."""
    with tempfile.TemporaryDirectory(prefix="everstep-journal-") as name, running(Path(name)) as server:
        uri = server.new_prefix()
        grow(open_store(uri, environment=server.environment), IN_S3)
        with _counted() as count:
            began = time.monotonic()
            store = open_store(uri, environment=server.environment)
            journal.claim(store, JOB, "127.0.0.1:2", time.time())
            journal.find_master(store, JOB)
            took = time.monotonic() - began
        holds = count[0] <= WANTED_REQUESTS and took <= WANTED_S
        told = f"{count[0]} requests, {took:.2f} s ({IN_S3} events)"
        yield Line(ASKED, f"<= {WANTED_REQUESTS}, <= {WANTED_S:.0f} s", told, holds)


JOB = "u-j"
FOLDED = "journal: 10,000 shards of one checkpoint are folded"
TAKEN = "journal: a master starts and takes over, 10^6 events and a snapshot"
TOLD = "journal: the report of 10^6 events"
ASKED = "journal: what a takeover asks MinIO for"
MEASURED: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    FOLDED: shards,
    f"{TAKEN}; {TOLD}; {ASKED}": started,
}


def grow(store: Store, events: int) -> State:
    """A job of so many records: a checkpoint a segment, snapshots and archive as they are due."""
    book, state = journal.claim(store, JOB, "127.0.0.1:1", time.time())
    waiting = written = records = 0
    now, at = time.time(), 0
    while written < events:
        at, now = at + 50, now + 1
        key = f"jobs/{JOB}/checkpoints/000001-{at:09d}"
        batch: list[Record] = [
            ShardPersisted(time=now, holding=Holding(1, at, shard=rank, shards=RANKS, size=1, key=f"{key}/{rank}"))
            for rank in range(RANKS)
        ]
        batch.append(Committed(time=now, round=1, iteration=at, key=f"{key}/manifest.json"))
        draft = book.draft(batch)
        book.write(draft)
        state = fold(batch, state)
        written, waiting, records = written + len(batch), waiting + 1, records + len(batch)
        if snapshots.due(waiting, records, state):
            snapshots.write(store, JOB, draft.number, state)
            segments.archive(store, JOB, draft.number)
            waiting = records = 0
    return state


@contextmanager
def _counted() -> Iterator[list[int]]:
    """How many requests went out by HTTP, pages of listings included."""
    count, send = [0], HTTPConnectionPool.urlopen

    def counted(*arguments: Any, **more: Any) -> Any:
        count[0] += 1
        return send(*arguments, **more)

    HTTPConnectionPool.urlopen = counted
    try:
        yield count
    finally:
        HTTPConnectionPool.urlopen = send


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _memory() -> str | None:
    """Where files lie in memory, if there is such a place: a disk's fsync is not what is measured."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def main() -> None:
    """Print what is measured here."""
    words = sys.argv[1:]
    for promise, measure in MEASURED.items():
        if asked(promise, words):
            for line in measure(argparse.Namespace()):
                print(f"{line.verdict:4}{line.promise}: {line.measured} (wanted {line.wanted})", flush=True)


if __name__ == "__main__":
    main()
