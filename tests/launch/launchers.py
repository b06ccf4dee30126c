"""Launchers as real processes: torch's own, and ours; whatever a failed test leaves is ended."""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from everstep.runtime.launch.local_state import LocalState
from everstep.runtime.system.processes import kill_processes

ROOT = Path(__file__).parents[2]
DEADLINE_S = 180
EVERSTEP = (sys.executable, "-m", "everstep.cli.main", "launch")
_OURS = (
    "EVERSTEP_",
    "PET_",
    "TORCHELASTIC_",
    "OMP_NUM_THREADS",
    "RANK",
    "NODE_RANK",
    "MASTER_",
    "DLROVER_",
    "LOGLEVEL",
)


def until(ready: Callable[[], object], what: Callable[[], str], seconds: float = DEADLINE_S) -> None:
    """Wait for it; fails at the deadline with `what`, asked then."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what()}")
        threading.Event().wait(0.02)


@dataclass(frozen=True)
class LaunchOutcome:
    """What a launcher did."""

    code: int
    out: str
    err: str
    folder: Path
    """Where it ran."""

    def lines(self) -> list[str]:
        """Of stdout, in an order of their own: ranks write when they like."""
        return sorted(self.out.splitlines())

    def logs(self) -> dict[str, str]:
        """Log files by their path below the run's folder, which is named by chance."""
        runs = [run for run in (self.folder / "logs").iterdir() if run.is_dir()]
        assert len(runs) == 1, f"one run, one folder: {runs}"
        return {str(path.relative_to(runs[0])): path.read_text() for path in runs[0].rglob("*") if path.is_file()}


@dataclass
class Launcher:
    """Starts launchers in a folder, with a clean environment."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    named: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    """The last one of each name."""
    tmp: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="everstep-")))
    """Where launchers put what they share: not with other tests. Short: multiprocessing makes sockets below it."""

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """Ours without what would tell a launcher something, and what the test adds."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        added = {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.tmp), **more}
        return {**inherited, **{name: value for name, value in added.items() if value}}

    def start(self, command: Sequence[str], *arguments: str, name: str = "node", **more: str) -> subprocess.Popen[str]:
        """Start one; its streams go to files of that name. Capitals are environment."""
        with (self.folder / f"{name}.out").open("w") as out, (self.folder / f"{name}.err").open("w") as err:
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=self.folder,
                env=self.environment(more),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        self.named[name] = process
        return process

    def wait_for_end(self, process: subprocess.Popen[str], name: str = "node") -> LaunchOutcome:
        """Wait for its end."""
        code = process.wait(DEADLINE_S)
        return LaunchOutcome(code, self.text(name, "out"), self.text(name, "err"), self.folder)

    def text(self, name: str, stream: str) -> str:
        """What it wrote so far."""
        return (self.folder / f"{name}.{stream}").read_text()

    def processes(self) -> list[tuple[int, str]]:
        """(pid, command line) of all that was started here and lives."""
        mark, commands = self._mark(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
                    if alive and mark in (entry / "environ").read_bytes().split(b"\0"):
                        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                        commands.append((int(entry.name), command))
        return commands

    def _mark(self) -> bytes:
        """The variable that all processes started here have."""
        return f"TMPDIR={self.tmp}".encode()

    def leftovers(self) -> list[str]:
        """Files in the folder that launches share, without the secrets of ports and the locks."""
        files = (path for path in self.tmp.rglob("*") if path.is_file() and path.suffix not in (".token", ".lock"))
        return sorted({str(path.relative_to(self.tmp)) for path in files if "journal" not in path.parts})

    def close(self) -> None:
        """End whatever is left."""
        kill_processes({self._mark()}.issubset)
        for process in self.started:
            process.wait(DEADLINE_S)
        for folder in self.tmp.glob(f"everstep-{os.getuid()}/*-*/"):
            LocalState(folder).sweep()  # As the next launch would: a killed node's memory.
        shutil.rmtree(self.tmp, ignore_errors=True)


class Torchrun:
    """torch's own launcher, imported once for all tests of a session."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.launch.torchrun_server"],
            cwd=ROOT,
            env={**environment, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, launcher: Launcher, arguments: Sequence[str], more: Mapping[str, str]) -> LaunchOutcome:
        """One launch, to its end."""
        out, err = launcher.folder / "node.out", launcher.folder / "node.err"
        request = {
            "folder": str(launcher.folder), "arguments": arguments, "environment": launcher.environment(more),
            "out": str(out), "err": str(err),
        }  # fmt: skip
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        ready, _, _ = select.select([self._server.stdout], [], [], DEADLINE_S)
        assert ready, (
            f"torchrun did not end within {DEADLINE_S} s: {err.read_text() if err.exists() else 'it did not begin'}"
        )
        return LaunchOutcome(int(self._server.stdout.readline()), out.read_text(), err.read_text(), launcher.folder)

    def close(self) -> None:
        """With whatever it runs."""
        self._server.kill()
        self._server.communicate()


@dataclass
class Pair:
    """The same command under torchrun and under `everstep launch`, each in a folder of its own."""

    folder: Path
    torchrun: Torchrun
    launchers: list[Launcher] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """More files in each folder: path -> text."""

    def run(self, script: str, *arguments: str, **more: str) -> tuple[LaunchOutcome, LaunchOutcome]:
        """(torchrun's, ours) for a script's text; `train.py` among the arguments is the script."""
        results = []
        for name in ("torchrun", "everstep"):
            folder = self.folder / name
            folder.mkdir()
            for path, text in {"train.py": script, **self.files}.items():
                (folder / path).parent.mkdir(exist_ok=True)
                (folder / path).write_text(text)
            launcher = Launcher(folder)
            self.launchers.append(launcher)
            own = [argument.replace("{folder}", str(folder)) for argument in arguments]
            variables = {key: value.replace("{folder}", str(folder)) for key, value in more.items()}
            if name == "torchrun":
                results.append(self.torchrun.run(launcher, own, variables))
            else:
                results.append(launcher.wait_for_end(launcher.start(EVERSTEP, *own, **variables)))
        assert self.launchers[-1].processes() == []
        return results[0], results[1]
