"""Listening sockets: hostile connections while a job trains.

python -m benchmarks.hardening.sockets        # what is measured, alone
"""

import argparse
import asyncio
import json
import resource
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from benchmarks.acceptance import Line, asked, chosen, judge
from benchmarks.master import JOB, MIB, TOKEN, Scene, started
from runtime.master import find_master
from runtime.store import DirectoryStore
from tests.hostile import KINDS, Crowd

AGENTS = 100
CONNECTIONS = 20_000
AT_ONCE = 4000
DESCRIPTORS = 1024
"""What the master may open: the usual limit of a shell."""
GROWTH_MIB = 100
DOOR = "tests/test_door.py"
PROVEN: Mapping[str, tuple[str, ...]] = {
    "sockets: half heads, slow bodies, silent, wrong tokens, garbage: sent away, and keep nobody out": (
        f"{DOOR}::sent_away", f"{DOOR}::keeps_nobody_out", f"{DOOR}::oldest_away", f"{DOOR}::has_shown_the_token",
        "tests/master/test_server.py",
    ),
    "sockets: descriptors are kept for the job's own work; EMFILE is survived and told once a minute": (
        f"{DOOR}::descriptor", f"{DOOR}::often", "tests/master/test_master_run.py::descriptor",
        "tests/platform/test_process_platform.py::descriptor",
    ),
    "sockets: rank 0's store listens where the ranks look for it; torchrun's contract stands": (
        "tests/launch/test_tcp_store.py", "tests/launch/test_like_torchrun.py::workers_see",
    ),
    "sockets: a folder below the temporary one that is another's is refused": (
        "tests/store/test_cache.py::temporary", "tests/launch/test_meeting.py::no_other_user",
    ),
    "sockets: Spark with a secret and encrypted; a cluster without one is told": (
        "tests/preprocess/test_masters.py::secret", "tests/preprocess/test_masters.py::kubernetes",
        "tests/preprocess/test_prefix.py::cluster",
    ),
}  # fmt: skip


def _hostile(pipe: Connection, port: int) -> None:
    """A process that comes as a crowd, and tells what became of it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = Crowd()
    asyncio.run(crowd.attack(port, CONNECTIONS, AT_ONCE))
    pipe.send(crowd)


@dataclass
class _Watch:
    """Looks at a master from time to time, in a thread."""

    url: str
    process: psutil.Process
    most_bytes: int = 0
    slowest_s: float = 0.0
    unanswered: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until it is over."""
        while not self.over.wait(0.2):
            self.most_bytes = max(self.most_bytes, self.process.memory_info().rss)
            began = time.monotonic()
            try:
                self.asked("status")
            except OSError:
                self.unanswered += 1
            else:
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def asked(self, what: str) -> dict[str, int]:
        """The master's answer, on a new connection. Raises OSError."""
        request = urllib.request.Request(f"{self.url}/v1/{what}", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=30.0) as answer:
            return json.load(answer)


def attacked(options: argparse.Namespace) -> Iterator[Line]:
    """Agents that train, and a crowd at the same port."""
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
        stage = Scene(Path(folder), AGENTS, clients=1)
        try:
            yield from _attack(stage, Path(folder))
        finally:
            stage.close()


def _attack(stage: Scene, folder: Path) -> Iterator[Line]:
    assert stage.process.pid is not None
    resource.prlimit(stage.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    found = find_master(DirectoryStore(folder), JOB)
    assert found is not None, "a master that asked for nodes has claimed its job"
    stage.begin()
    stage.seated(1)
    watch = _Watch(f"http://{found.address}", psutil.Process(stage.process.pid))
    before_bytes, beats, began = watch.process.memory_info().rss, stage.beats(), time.monotonic()
    looking = threading.Thread(target=watch.run)
    looking.start()
    process, pipe = started(_hostile, int(found.address.rpartition(":")[2]))
    try:
        crowd: Crowd = pipe.recv()
    finally:
        watch.over.set()
        looking.join()
        process.kill()
    took, beats = time.monotonic() - began, stage.beats() - beats
    came = sum(crowd.came.values())
    lost = AGENTS - sum(node["phase"] == "running" for node in watch.asked("nodes"))  # type: ignore[index]
    told = f"{lost} lost, round {watch.asked('status')['round']}, {beats} heartbeats answered in {took:.0f} s"
    everyone = min(crowd.came[kind] for kind in KINDS) * len(KINDS) > 0.9 * CONNECTIONS
    yield Line(
        f"sockets: {came} hostile connections of {len(KINDS)} kinds while {AGENTS} agents train", "no agent lost",
        told, not lost and watch.asked("status")["round"] == 1 and beats >= AGENTS and everyone,
    )  # fmt: skip
    yield Line(
        "sockets: whoever has the token is answered meanwhile, on a new connection", "each time",
        f"{watch.unanswered} unanswered, the slowest in {watch.slowest_s:.2f} s", not watch.unanswered,
    )  # fmt: skip
    grown = (watch.most_bytes - before_bytes) / MIB
    yield Line("sockets: memory of the master", f"< {GROWTH_MIB} MiB more", f"{grown:.0f} MiB", grown < GROWTH_MIB)


MEASURED: Mapping[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    f"sockets: {CONNECTIONS} hostile connections of five kinds while {AGENTS} agents train": attacked,
}


def main() -> None:
    """Measure and print."""
    options = chosen(argparse.ArgumentParser(description=__doc__), list(MEASURED))
    judge(line for promise, measure in MEASURED.items() if asked(promise, options.words) for line in measure(options))


if __name__ == "__main__":
    main()
