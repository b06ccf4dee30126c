"""The same kill for those who also keep survivors: torchft, and NVRx's in-process restart.

    python -m benchmarks.peers.survivor_peers --kills 3

Each needs an environment of its own, which sees this one's torch: `peer_python` says how it is made. Without it the row
says so. torchft's replicas go on without the killed one, which is started again here: "all" counts until both train
together. NVRx starts no process: a reserved rank takes the place; the first rank, which serves its store, is spared.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.recovery import make_dataset
from everstep.runtime.agent.ports import free_port_pair
from tests.harness import ROOT, kill, wait_until

PLACE = Path.home() / ".cache" / "everstep-peers"
HUNG_S = 120.0
PACKAGES = {"torchft": "torchft-nightly", "nvrx": "nvidia-resiliency-ext"}


class Row(NamedTuple):
    """One peer."""

    name: str
    survivors: Sequence[float]
    """Seconds from each kill to the next iteration that the survivors finished."""
    everyone: Sequence[float]
    """And to the next one that as many ranks as before finished together."""
    why_not: str = ""


def peer_python(name: str) -> Path | None:
    """The peer's interpreter: `python -m venv PLACE/NAME`, a .pth file there that names this environment's
    site-packages, `pip install --no-deps PACKAGE`, and what it needs besides torch (torchft: opentelemetry-sdk and
    opentelemetry-exporter-otlp-proto-http; NVRx: pynvml, nvidia-ml-py, defusedxml). None: it is not there."""
    python = PLACE / name / "bin" / "python"
    return python if python.exists() else None


class Peer:
    """Processes of one peer, and the lines that they write."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder, self._python = folder, python
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir()

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a process of the peer."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [str(self._python), *arguments], cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def lines(self) -> list[dict[str, Any]]:
        """Finished iterations, in the order of their time."""
        lines = []
        for path in self.folder.glob("iterations-*.jsonl"):
            lines += [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return sorted(lines, key=lambda line: line["time"])

    def wait_for(self, predicate: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """The first line of which that is true. Raises TimeoutError."""

        def found_or_over() -> dict[str, Any] | bool | None:
            return next(filter(predicate, self.lines()), None) or all(
                process.poll() is not None for process in self.processes
            )

        line = wait_until(found_or_over, what, HUNG_S, 0.05)
        if line is True:
            raise TimeoutError(f"{what}: all its processes have ended")
        return line

    def end(self) -> None:
        """End all processes."""
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
            process.wait()


def torchft_row(folder: Path, dataset: str, count: int) -> Row:
    """Two replicas of one rank each."""
    python = peer_python("torchft")
    if python is None:
        return Row("torchft", [], [], f"no {PLACE / 'torchft'}: {PACKAGES['torchft']} is not installed")
    peer, alone, both = Peer(folder / "torchft", python), [], []
    lighthouse = (
        "import sys, time\nfrom torchft.coordination import LighthouseServer\n"
        "one = LighthouseServer(bind='127.0.0.1:0', min_replicas=1, join_timeout_ms=100, quorum_tick_ms=20, "
        "heartbeat_timeout_ms=2000)\nopen(sys.argv[1], 'w').write(one.address())\ntime.sleep(1e9)\n"
    )
    try:
        peer.start("-c", lighthouse, str(peer.folder / "address"))
        address = wait_until(lambda: _text(peer.folder / "address"), "the lighthouse", HUNG_S / 4)
        replicas = {name: _replica(peer, dataset, name, address) for name in "ab"}
        for number in range(count):
            peer.wait_for(lambda line: line["ranks"] == 2 and line["time"] > time.time() - 1, "both train")
            threading.Event().wait(1.0)
            name = "ab"[number % 2]
            moment = kill(psutil.Process(replicas[name].pid))
            replicas[name] = _replica(peer, dataset, f"{name}", address)
            before = max(line["iteration"] for line in peer.lines() if line["time"] <= moment)
            after = lambda line, moment=moment, before=before: line["time"] > moment and line["iteration"] > before  # noqa: E731
            alone.append(peer.wait_for(after, "the survivor")["time"] - moment)
            together = peer.wait_for(
                lambda line, after=after, moment=moment: (
                    after(line) and line["ranks"] == 2 and line["time"] > moment + 1
                ),
                "both",
            )
            both.append(together["time"] - moment)
    except TimeoutError as error:
        return Row("torchft", alone, both, f"{error}; {_last(peer)}")
    finally:
        peer.end()
    return Row("torchft", alone, both)


def _replica(peer: Peer, dataset: str, name: str, address: str) -> subprocess.Popen[bytes]:
    return peer.start("-m", "benchmarks.peers.torchft_llama", dataset, str(peer.folder), name, "100000", address)


def nvrx_row(folder: Path, dataset: str, count: int) -> Row:
    """Two active ranks, and a reserved one for each kill."""
    python = peer_python("nvrx")
    if python is None:
        return Row("NVRx in-process", [], [], f"no {PLACE / 'nvrx'}: {PACKAGES['nvrx']} is not installed")
    import random

    peer, both = Peer(folder / "nvrx", python), []
    world, port = 2 + count, free_port_pair(random.Random())
    try:
        for rank in range(world):
            place = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            place |= {"LOCAL_RANK": str(rank), "FIRST": str(int(rank == 0))}
            peer.start("-m", "benchmarks.peers.nvrx_llama", dataset, str(peer.folder), "100000", "2", **place)
        for number in range(count):
            reached = max((line["iteration"] for line in peer.lines()), default=0) + 12
            peer.wait_for(lambda line, reached=reached: line["iteration"] >= reached, "12 iterations")
            moment = kill(psutil.Process(peer.processes[1 + number].pid))
            before = max(line["iteration"] for line in peer.lines() if line["time"] <= moment)
            line = peer.wait_for(
                lambda line, moment=moment, before=before: line["time"] > moment + 0.3 and line["iteration"] > before,
                "the next iteration",
            )
            both.append(line["time"] - moment)
    except TimeoutError as error:
        return Row("NVRx in-process", both, both, f"{error}; {_last(peer)}")
    finally:
        peer.end()
    return Row("NVRx in-process", both, both)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _last(peer: Peer) -> str:
    *_, last = [line for line in _text(peer.folder / "log").splitlines() if line.strip()] or [""]
    return last[:200]


def describe(row: Row) -> str:
    """Medians, or why there are none."""
    if not row.everyone:
        return row.why_not or "nothing"
    alone, everyone = statistics.median(row.survivors), statistics.median(row.everyone)
    more = f"; then {row.why_not}" if row.why_not else ""
    return f"survivors {alone:.2f} s, all {everyone:.2f} s (median of {len(row.everyone)}){more}"


def measure(folder: Path, dataset: str, count: int) -> Iterator[Row]:
    """Both peers, one after the other."""
    yield torchft_row(folder, dataset, count)
    yield nvrx_row(folder, dataset, count)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--dataset", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as name:
        folder = Path(name)
        dataset = options.dataset or make_dataset(folder)
        for row in measure(folder, dataset, options.kills):
            print(f"| {row.name} | {describe(row)} |", flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
