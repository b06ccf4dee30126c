"""Listening sockets: hostile connections while a job trains, and what TLS costs (see `tls`).

python -m benchmarks.hardening.sockets        # the measurements alone
"""

import argparse
import asyncio
import json
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPException
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from benchmarks.acceptance import Line, is_asked, judge, parse_options
from benchmarks.hardening import tls
from benchmarks.master import JOB, MIB, Scene, start_process
from everstep.runtime.master import find_master
from everstep.runtime.net.tls import Credentials
from everstep.runtime.store import DirectoryStore
from tests.hostile import AT_TLS, KINDS, Crowd

AGENTS = 100
CONNECTIONS = 20_000
AT_ONCE = 4000
DESCRIPTORS = 1024
"""Descriptors that the master may open: a shell's usual limit."""
GROWTH_MIB = 100
GATE = "tests/test_token_gate.py"
PROVEN: Mapping[str, tuple[str, ...]] = {
    "sockets: half heads, slow bodies, silent, wrong tokens, garbage: sent away, and keep nobody out": (
        f"{GATE}::sent_away", f"{GATE}::keeps_nobody_out", f"{GATE}::oldest_away", f"{GATE}::has_shown_the_token",
        "tests/master/test_server.py",
    ),
    "sockets: descriptors are kept for the job's own work; EMFILE is survived and told once a minute": (
        f"{GATE}::descriptor", f"{GATE}::often", "tests/master/test_master_run.py::descriptor",
        "tests/platform/test_process_platform.py::descriptor",
    ),
    "sockets: TLS between master, agents and peers: nobody without the token is believed or heard": (
        "tests/test_tls.py", "tests/checkpoint/test_fetch_by_tls.py", f"{GATE}::by_tls",
        "tests/agent/test_shard_server.py",
    ),
    "sockets: TLS: half handshakes, clear text, garbage: sent away, and keep nobody out": (
        f"{GATE}::shake_hands", f"{GATE}::shaken_hands", f"{GATE}::for_tls",
    ),
    "sockets: TLS between two nodes: nothing on the wire is clear, also when one restores from the other": (
        "tests/launch/test_between_machines.py",
    ),
    "sockets: TLS on by default on Kubernetes; no key or token in a manifest": (
        "tests/platform/test_pods_of_a_job.py::tls", "tests/train/test_train_nodes.py::listens_on_its_address",
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


def _hostile(pipe: Connection, port: int, kinds: Mapping[str, bytes]) -> None:
    """A process that is the crowd, and reports what became of it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = Crowd(kinds)
    asyncio.run(crowd.attack(port, CONNECTIONS, AT_ONCE))
    pipe.send(crowd)


@dataclass
class _Watch:
    """Queries a master from time to time, in a thread."""

    address: str
    credentials: Credentials
    process: psutil.Process
    most_bytes: int = 0
    slowest_s: float = 0.0
    unanswered: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Query until told to stop."""
        while not self.over.wait(0.2):
            self.most_bytes = max(self.most_bytes, self.process.memory_info().rss)
            began = time.monotonic()
            try:
                self.ask("status")
            except (OSError, HTTPException):
                self.unanswered += 1
            else:
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def ask(self, what: str) -> dict[str, int]:
        """The master's answer, on a new connection. Raises OSError."""
        connection = self.credentials.connection(self.address, 30.0)
        with closing(connection):
            connection.request("GET", f"/v1/{what}", headers=dict(self.credentials.headers))
            return json.load(connection.getresponse())


def attacks_in_clear(_: argparse.Namespace) -> Iterator[Line]:
    """Agents train while a crowd attacks the same port."""
    yield from _attacks("sockets", KINDS, by_tls=False)


def attacks_by_tls(_: argparse.Namespace) -> Iterator[Line]:
    """The same, with a master that other machines can reach."""
    yield from _attacks("sockets: TLS", AT_TLS, by_tls=True)


def _attacks(part: str, kinds: Mapping[str, bytes], by_tls: bool) -> Iterator[Line]:
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
        stage = Scene(Path(folder), AGENTS, clients=1, tls=by_tls)
        try:
            yield from _attack(stage, Path(folder), part, kinds)
        finally:
            stage.close()


def _attack(stage: Scene, folder: Path, part: str, kinds: Mapping[str, bytes]) -> Iterator[Line]:
    assert stage.process.pid is not None
    resource.prlimit(stage.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    master_address = find_master(DirectoryStore(folder), JOB)
    assert master_address is not None, "a master that asked for nodes has claimed its job"
    stage.join_all()
    stage.wait_for_seats(1)
    watch = _Watch(master_address.address, stage.credentials, psutil.Process(stage.process.pid))
    before_bytes, beats, began = watch.process.memory_info().rss, stage.beats(), time.monotonic()
    looking = threading.Thread(target=watch.run)
    looking.start()
    process, pipe = start_process(_hostile, int(master_address.address.rpartition(":")[2]), kinds)
    try:
        crowd: Crowd = pipe.recv()
    finally:
        watch.over.set()
        looking.join()
        process.kill()
    took, beats = time.monotonic() - began, stage.beats() - beats
    came = sum(crowd.came.values())
    lost_agents = AGENTS - sum(node["phase"] == "running" for node in watch.ask("nodes"))  # type: ignore[index]
    measured_text = (
        f"{lost_agents} lost, round {watch.ask('status')['round']}, {beats} heartbeats answered in {took:.0f} s"
    )
    everyone = min(crowd.came[kind] for kind in kinds) * len(kinds) > 0.9 * CONNECTIONS
    yield Line(
        f"{part}: {came} hostile connections of {len(kinds)} kinds while {AGENTS} agents train", "no agent lost",
        measured_text, not lost_agents and watch.ask("status")["round"] == 1 and beats >= AGENTS and everyone,
    )  # fmt: skip
    yield Line(
        f"{part}: whoever has the token is answered meanwhile, on a new connection", "each time",
        f"{watch.unanswered} unanswered, the slowest in {watch.slowest_s:.2f} s", not watch.unanswered,
    )  # fmt: skip
    growth_mib = (watch.most_bytes - before_bytes) / MIB
    yield Line(
        f"{part}: memory of the master", f"< {GROWTH_MIB} MiB more", f"{growth_mib:.0f} MiB", growth_mib < GROWTH_MIB
    )


MEASURED: Mapping[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    f"sockets: {CONNECTIONS} hostile connections of five kinds while {AGENTS} agents train": attacks_in_clear,
    f"sockets: TLS: {CONNECTIONS} hostile connections of {len(AT_TLS)} kinds, {AGENTS} agents train": attacks_by_tls,
    **tls.MEASURED,
}


def main() -> None:
    """Measure and print."""
    options = parse_options(argparse.ArgumentParser(description=__doc__), list(MEASURED))
    judge(
        line for promise, measure in MEASURED.items() if is_asked(promise, options.words) for line in measure(options)
    )


if __name__ == "__main__":
    main()
