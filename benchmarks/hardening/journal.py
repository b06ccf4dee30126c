"""The journal, its readers, logs and stores of a job that runs for a month: what holds, and what it costs.

Alone: `python -m benchmarks.hardening.journal [WORD...]` prints the measurements.
"""

import argparse
import http.client
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.acceptance import Line, is_asked
from everstep.runtime.checkpoint.stored.keys import manifest_key, shard_key
from everstep.runtime.checkpoint.stored.manifest import encode_manifest, make_commit
from everstep.runtime.job.checkpoints import Checkpoints, with_shard
from everstep.runtime.job.events import Survey
from everstep.runtime.job.fold import fold
from everstep.runtime.job.records import Committed, Record, ShardPersisted
from everstep.runtime.journal import journal, segments, snapshots
from everstep.runtime.master.survey import survey_store
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.store import DirectoryStore, Store, open_store
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
    "journal: a takeover asks the store as often, however much is archived": (
        f"{MASTER}test_archive.py::asks_the_store",
    ),
    "a report of thousands of rounds is a page that a browser opens": ("tests/report/test_page.py::many_rounds",),
    "checkpoints: the newest three stay by default, of all attempts, and what was begun from": (
        "tests/launch/test_options.py::three_checkpoints", "tests/checkpoint/test_standalone.py::newest_checkpoints",
        "tests/checkpoint/test_retention.py",
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
_REPORT = """
import sys, time
from benchmarks.memory import peak_bytes
from everstep.runtime.report import WorkflowFacts, read_run, render
from everstep.runtime.store import open_store
began = time.monotonic(), time.process_time()
run = read_run(open_store(sys.argv[1], read_only=True), "run", facts=WorkflowFacts(uid="u"))
render(run, time.time())
took = time.monotonic() - began[0], time.process_time() - began[1]
print(*took, peak_bytes() / 1e6, len(run.jobs["j"].commits))
"""


def many_shards(_: argparse.Namespace) -> Iterator[Line]:
    """One checkpoint of many shards, shard after shard."""
    took = []
    for _attempt in range(3):
        checkpoints: Checkpoints = {}
        began = time.process_time()
        for shard in range(SHARDS):
            holding = Holding(1, 50, shard=shard, shards=SHARDS, size=1, key=f"k/{shard}", digest="0" * 32)
            checkpoints = with_shard(checkpoints, holding)
        took.append(time.process_time() - began)
    yield Line(FOLD_PROMISE, "<= 0.1 s", f"{min(took):.3f} s of one core", min(took) <= 0.1)


def start_and_takeover(_: argparse.Namespace) -> Iterator[Line]:
    """Start and takeover of a long job, and its report, in a directory and in MinIO."""
    with tempfile.TemporaryDirectory(dir=_memory_folder(), prefix="everstep-journal-") as folder:
        store = DirectoryStore(folder)
        commits = grow(store, EVENTS)
        master_address = _seconds(lambda: journal.find_master(store, JOB))
        with tempfile.TemporaryDirectory(prefix="everstep-minio-") as name, running(Path(name)) as server:
            uri = server.new_prefix()
            _copy(store, open_store(uri, environment=server.environment))
            asked_for = takeover_requests(uri, server.environment)
        claimed = _seconds(lambda: _take_over(store))
        size = sum(entry.size for entry in store.list(f"jobs/{JOB}/")) / 1e6
        listed = len(segments.listed_numbers(store, JOB))
        measured_text = f"find {master_address:.3f} s, take over {claimed:.3f} s; {listed} listed, {size:.0f} MB"
        yield Line(TAKEOVER_PROMISE, f"<= {WANTED_S:.0f} s", measured_text, max(master_address, claimed) <= WANTED_S)
        yield asked_for
        yield from report(folder, commits)


def report(folder: str, expected_commits: int) -> Iterator[Line]:
    """Make the report in a process of its own; it must contain so many commits."""
    run = subprocess.run([sys.executable, "-c", _REPORT, folder], cwd=ROOT, capture_output=True, text=True, check=True)
    elapsed, seconds, mb, commits = map(float, run.stdout.split())
    holds = seconds <= REPORT_S and mb <= REPORT_MB and commits == expected_commits
    yield Line(
        REPORT_PROMISE,
        f"<= {REPORT_S:.0f} s, {REPORT_MB:.0f} MB",
        f"{seconds:.1f} s of one core, {elapsed:.1f} s elapsed, {mb:.0f} MB",
        holds,
    )


def takeover_requests(uri: str, environment: Mapping[str, str]) -> Line:
    """A master's requests to MinIO until it serves: open the store, look for another master, take over, survey."""
    with _count_requests() as count:
        began = time.monotonic()
        store = open_store(uri, environment=environment)
        journal.find_master(store, JOB)
        replayed, take_over_s = _take_over(store)
        took = time.monotonic() - began
    holds = count[0] <= WANTED_REQUESTS and took <= WANTED_S and not take_over_s.refusals
    measured_text = (
        f"{count[0]} requests, {took:.2f} s ({EVENTS} events, {replayed.segments} segments after the snapshot)"
    )
    return Line(REQUESTS_PROMISE, f"<= {WANTED_REQUESTS}, <= {WANTED_S:.0f} s", measured_text, holds)


def _take_over(store: Store) -> tuple[journal.ReplayCost, Survey]:
    book, state = journal.claim(store, JOB, "127.0.0.1:2", time.time())
    return book.replayed, survey_store(store, JOB, state)


def _copy(source: Store, target: Store) -> None:
    """Copy all objects directly: so a year of a master's requests is there within seconds."""
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda entry: target.put(entry.key, source.get(entry.key)), [*source.list("")]):
            pass


JOB = "u-j"
FOLD_PROMISE = "journal: 10,000 shards of one checkpoint are folded"
TAKEOVER_PROMISE = "journal: a master starts and takes over, 10^6 events and a snapshot"
REPORT_PROMISE = "journal: the report of 10^6 events"
REQUESTS_PROMISE = "journal: what a takeover asks MinIO for"
MEASURED: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    FOLD_PROMISE: many_shards,
    f"{TAKEOVER_PROMISE}; {REPORT_PROMISE}; {REQUESTS_PROMISE}": start_and_takeover,
}


def grow(store: Store, events: int) -> int:
    """Write a job of at least so many records, with a checkpoint per segment, its commits, snapshots and archive.

    The last snapshot is as old as it can be, and the newest checkpoints are in the store.
    """
    book, state = journal.claim(store, JOB, "127.0.0.1:1", time.time())
    waiting = records = commits = 0
    now = time.time()
    while commits * (RANKS + 1) < events or waiting < snapshots.MAX_SEGMENTS - 1:
        commits, now = commits + 1, now + 1
        batch = _checkpoint(commits * 50, now)
        draft = book.draft(batch)
        book.write(draft)
        state = fold(batch, state)
        waiting, records = waiting + 1, records + len(batch)
        if snapshots.is_due(waiting, records, state):
            snapshots.write(store, JOB, draft.number, state)
            segments.archive(store, JOB, draft.number)
            waiting = records = 0
    for place, checkpoint in state.checkpoints.items():
        for holding in checkpoint.shards:
            store.put(holding.key, b"x")
        store.put(manifest_key(JOB, place), encode_manifest(make_commit(JOB, RANKS, checkpoint.shards)))
    return commits


def _checkpoint(at: int, now: float) -> list[Record]:
    shards = [
        Holding(1, at, shard=rank, shards=RANKS, size=1, key=shard_key(JOB, 1, at, rank), digest="0" * 32)
        for rank in range(RANKS)
    ]
    committed = Committed(time=now, round=1, iteration=at, key=manifest_key(JOB, (1, at)))
    return [*(ShardPersisted(time=now, holding=holding) for holding in shards), committed]


@contextmanager
def _count_requests() -> Iterator[list[int]]:
    """Count the HTTP requests.

    Pages of listings use urllib3, everything else http.client, which urllib3 itself calls.
    """
    count, send = [0], http.client.HTTPConnection.putrequest

    def count_call(*arguments: Any, **more: Any) -> None:
        count[0] += 1
        send(*arguments, **more)

    http.client.HTTPConnection.putrequest = count_call  # type: ignore[method-assign]
    try:
        yield count
    finally:
        http.client.HTTPConnection.putrequest = send  # type: ignore[method-assign]


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _memory_folder() -> str | None:
    """A folder in memory, if there is one: a disk's fsync is not part of the measurement."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def main() -> None:
    """Print the measurements."""
    words = sys.argv[1:]
    for promise, measure in MEASURED.items():
        if is_asked(promise, words):
            for line in measure(argparse.Namespace()):
                print(f"{line.verdict:4}{line.promise}: {line.measured} (wanted {line.wanted})", flush=True)


if __name__ == "__main__":
    main()
