"""Drives real runs for tests and benchmarks: starts them, watches, kills, and looks for what is left behind."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import psutil

from everstep.runtime.checkpoint.shard.segment import SegmentFile
from everstep.runtime.journal import segments as journal_segments
from everstep.runtime.store import open_store
from everstep.runtime.system.processes import find_processes

ROOT = Path(__file__).parents[1]
SHARED_MEMORY = Path("/dev/shm")
ROUNDS = int(os.environ.get("EVERSTEP_ROUNDS", "1"))
"""How often each survival test injects its fault in a row: once in `make test`, 50 times in `make survival`."""
PATIENCE_S = 240.0
"""Nothing that is waited for here takes so long; then the wait fails, whatever the machine is busy with."""


@contextmanager
def busy(soaking: bool = ROUNDS > 1) -> Iterator[None]:
    """In a soak, other processes want every core too."""
    spin = [sys.executable, "-c", "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"]
    spinning = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)] if soaking else []
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def wait_until(predicate: Callable[[], Any], what: str, seconds: float = PATIENCE_S, pause_s: float = 0.005) -> Any:
    """The first true value of `predicate`. Raises TimeoutError that names what was waited for.

    A look that costs much (all processes, a whole journal) is taken less often: who waits uses a tenth of a core.
    """
    pause, deadline = threading.Event(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        began = time.thread_time()
        if value := predicate():
            return value
        pause.wait(max(pause_s, 9 * (time.thread_time() - began)))
    raise TimeoutError(f"{what}: not within {seconds:.0f} s")


def job_mark(job: str) -> str:
    """What the names of a job's shared memory begin with."""
    return f"everstep-{hashlib.sha256(job.encode()).hexdigest()[:12]}-"


@dataclass
class Watched:
    """The processes and shared memory of one run folder, found by what they carry in their environment."""

    folder: Path
    store: Path | str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def processes(self) -> list[psutil.Process]:
        """Every process of the run."""
        marker = f"EVERSTEP_RUN_DIR={self.folder}".encode()
        processes = []
        for pid in find_processes({marker}.issubset):
            with suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(pid))
        return processes

    def commands(self, *words: str) -> list[tuple[list[str], psutil.Process]]:
        """Those whose command line has all these words, with it, which nobody can read when they have ended."""
        matches = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                if set(words) <= set(line := process.cmdline()):
                    matches.append((line, process))
        return matches

    def of(self, *words: str) -> list[psutil.Process]:
        """Those whose command line has all these words."""
        return [process for _, process in self.commands(*words)]

    def agents(self) -> list[psutil.Process]:
        """One a node, in the order of their names."""
        return [process for _, process in sorted(self.commands("everstep.runtime.agent"), key=itemgetter(0))]

    def workers(self) -> list[psutil.Process]:
        """The training processes: children of the fork servers."""
        workers = []
        for agent in self.agents():
            with suppress(psutil.NoSuchProcess):
                workers += [worker for server in agent.children() for worker in server.children()]
        return workers

    def step(self) -> psutil.Process | None:
        """The train step, which is the master."""
        steps = [process for line, process in self.commands("everstep.steps.train") if Path(line[0]).name != "sh"]
        return steps[0] if steps else None

    def segments(self) -> list[Path]:
        """Shared memory of the run's jobs."""
        return [path for job in self.jobs() for path in SHARED_MEMORY.glob(f"{job_mark(job)}*")]

    def folders(self) -> list[Path]:
        """Private folders of the run's agents."""
        return [path for job in self.jobs() for path in SHARED_MEMORY.glob(f".{job_mark(job)}*")]

    def jobs(self) -> list[str]:
        """Jobs that this run began."""
        return sorted(path.stem for path in (self.folder / "jobs").glob("*.token"))

    def iteration(self) -> int:
        """The newest iteration that any worker's beacon shows; 0 before."""
        newest = 0
        for path in self.segments():
            with suppress(OSError, ValueError):
                newest = max(newest, SegmentFile.open(path).read_beacon().iteration)
        return newest

    def wait_iteration(self, iteration: int) -> int:
        """Until a worker has reached it, or the started process has ended."""
        wait_until(lambda: self.iteration() >= iteration or self.over(), f"iteration {iteration}")
        return self.iteration()

    def last_words(self) -> str:
        """The end of every log, for the message of a failed assertion."""
        logs = [*sorted((self.folder / "logs").rglob("*.log")), *self.folder.glob("*.log")]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)

    def node_logs(self, node: str = "*") -> list[Path]:
        """The logs of the trainings' nodes."""
        return sorted(self.folder.glob(f"logs/*/{node}.log"))

    def over(self) -> bool:
        """Has the newest process that we started ended?"""
        return self.started[-1].poll() is not None

    def records(self) -> list[dict[str, Any]]:
        """The journals of the run's jobs, with what is archived of them, as JSON."""
        if not (jobs := self.jobs()):
            return []
        store = open_store(str(self.store))
        bodies = [segment.data for job in jobs for segment in journal_segments.read(store, job)]
        lines = [json.loads(line) for body in bodies for line in body.splitlines()]
        return [line for line in lines if line["kind"] != "Segment"]

    def has_commit(self) -> bool:
        """Do the journals know of a checkpoint that a round can begin from?"""
        return any(record["kind"] == "Committed" for record in self.records())

    def telemetry(self) -> list[dict[str, Any]]:
        """What the workers reported, in the order of its time."""
        lines = [
            json.loads(line)
            for job in self.jobs()
            for path in (Path(self.store) / "jobs" / job / "telemetry").glob("*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return sorted(lines, key=lambda line: line["time"])

    def leftovers(self) -> list[str]:
        """Processes and shared memory that are still there."""
        lines = [f"{process.pid} {' '.join(line[:6])}" for line, process in self.commands()]
        return [*lines, *(str(path) for path in [*self.segments(), *self.folders()])]

    def kill_all(self) -> None:
        """End whatever is left of a failed test; first who would start it again."""
        for process in self.started:
            process.kill()
            process.wait()
        while left_processes := self.processes():
            for process in left_processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left_processes, 1)
        for path in self.segments():
            path.unlink(missing_ok=True)
        for path in self.folders():
            shutil.rmtree(path, ignore_errors=True)


@dataclass
class TrainStep(Watched):
    """`python -m everstep.steps.train` by itself, as the executor would start it."""

    module: str = "everstep.steps.train"

    flags: dict[str, str] = field(default_factory=dict)
    faults: str = ""
    armed: int = 0
    group: Path | None = None
    """The control group that it is started in."""
    environment: dict[str, str] = field(default_factory=dict)
    """What it is told besides."""
    python: str = sys.executable
    """What runs it, and with it the nodes and their workers."""

    @property
    def fault_folder(self) -> Path:
        """Where fired faults leave their mark, one for each `arm`."""
        return self.folder / "faults" / str(self.armed)

    @property
    def outputs(self) -> Path:
        """Its output parameters."""
        return self.folder / "outputs"

    @property
    def log(self) -> Path:
        """Its stdout and stderr."""
        return self.folder / "step.log"

    def start(self, **more: str) -> subprocess.Popen[bytes]:
        """Start it (again)."""
        self.fault_folder.mkdir(parents=True, exist_ok=True)
        uid = hashlib.sha256(str(self.folder).encode()).hexdigest()[:16]
        if not (self.folder / "workflow.json").exists():
            store = {"name": "store", "value": str(self.store)}
            workflow = {"metadata": {"name": "test", "uid": uid}, "spec": {"arguments": {"parameters": [store]}}}
            (self.folder / "workflow.json").write_text(json.dumps(workflow))
        flags = {"store": str(self.store), "outputs": str(self.outputs), "run": "test", "job": f"{uid}-train"}
        flags |= self.flags | more
        environment = {**os.environ, "EVERSTEP_RUN_DIR": str(self.folder), "OMP_NUM_THREADS": "1"}
        environment |= self.environment
        if self.faults:
            environment |= {"EVERSTEP_FAULT": self.faults, "EVERSTEP_FAULT_DIR": str(self.fault_folder)}
        command = [
            self.python,
            "-m",
            self.module,
            *(f"--{name}={value}" for name, value in flags.items()),
        ]
        if self.group:
            command = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.group), *command]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.started.append(process)
        return process

    def finish(self) -> int:
        """Wait for the end; its exit code, negative for a signal."""
        return self.started[-1].wait(timeout=PATIENCE_S * ROUNDS)

    def fired_points(self) -> list[str]:
        """Points of the armed faults that fired, each as often as it did."""
        return sorted(re.sub(r"\.\d+$", "", path.name) for path in self.fault_folder.iterdir())

    def arm(self, faults: str) -> None:
        """Faults for what is started from now on; earlier ones are forgotten."""
        self.faults = faults
        self.armed += 1

    def checkpoint(self) -> Path:
        """Folder of the final checkpoint."""
        return Path((self.outputs / "checkpoint").read_text())


@dataclass
class Pipeline(Watched):
    """`python pipelines/llama_finetune.py`, as a user calls it."""

    name: str = "run"
    flags: tuple[str, ...] = ()

    @property
    def log(self) -> Path:
        """Stdout and stderr of the launcher."""
        return self.folder.parent / f"{self.name}.log"

    def start(self) -> subprocess.Popen[bytes]:
        """Start the launcher (again)."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(ROOT / "pipelines/llama_finetune.py"), "--name", self.name]
        command += ["--store", str(self.store), "--runs", str(self.folder.parent), *self.flags]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def finish(self) -> int:
        """Wait for the end; its exit code, negative for a signal."""
        return self.started[-1].wait(timeout=2 * PATIENCE_S * ROUNDS)

    def workflow(self) -> dict[str, Any]:
        """The newest workflow.json."""
        return json.loads((self.folder / "workflow.json").read_text())

    def phases(self) -> dict[str, str]:
        """Phase of each node by its display name."""
        with suppress(FileNotFoundError):
            return {node["displayName"]: node["phase"] for node in self.workflow()["status"].get("nodes", {}).values()}
        return {}


def kill(process: psutil.Process) -> float:
    """SIGKILL; returns when it was sent (Unix time). Asserts that the process was there and is gone."""
    assert process.is_running(), f"{process} was gone before it could be killed"
    sent = time.time()
    os.kill(process.pid, signal.SIGKILL)
    with suppress(psutil.NoSuchProcess):
        wait_until(
            lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, f"the end of {process}"
        )
    return sent


def tensors(checkpoint: Path) -> dict[str, bytes]:
    """Every tensor of a checkpoint by name, as bytes; the JSON state is left out (it names the round)."""
    from safetensors import safe_open

    tensors = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                if not name.startswith("__"):
                    tensors[name] = file.get_tensor(name).contiguous().view(-1).numpy().tobytes()
    return tensors


def all_tensors(checkpoint: Path) -> dict[str, dict[str, bytes]]:
    """The tensors of each rank's file: a sharded state has the same names in all."""
    from safetensors import safe_open

    by_number: dict[str, dict[str, bytes]] = {}
    for number, path in enumerate(sorted(checkpoint.glob("*.safetensors"))):
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if not name.startswith("__")]  # noqa: SIM118 - not a dict
            each = {name: file.get_tensor(name).contiguous().view(-1).numpy().tobytes() for name in names}
        by_number[str(number)] = each
    return by_number
