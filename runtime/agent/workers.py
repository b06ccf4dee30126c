"""The workers of one node: started together, watched, ended together."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everstep.runtime.agent.forkserver_client import Exited, Forked, ForkServer, ForkServerLost, Spawn
from everstep.runtime.agent.output import LAST_WORDS, Output
from everstep.runtime.agent.script import TRACEBACK_VARIABLE
from everstep.runtime.system.processes import start_time


@dataclass(frozen=True)
class WorkerEnd:
    """A worker is dead."""

    round: int
    local_rank: int
    exit_code: int
    """Negative for a signal."""
    time: float
    """Unix time."""
    error: str
    """What it wrote to its error file, else its traceback, else its last words; at most 16 KiB."""
    pid: int = 0
    error_file: str = ""
    """Where torch's `record` wrote the error, if it did; it may go with the node,"""
    reply: str = ""
    """and what it wrote there: JSON."""


@dataclass(frozen=True)
class WorkerSpec:
    """All that one worker needs."""

    environment: Mapping[str, str]
    command: tuple[str, ...]
    output: Output
    cpus: Sequence[int] = ()
    """Logical CPUs that it runs on; empty: all."""


@dataclass
class _Worker:
    round: int
    local_rank: int
    output: Output
    traceback: Path
    dead: asyncio.Event = field(default_factory=asyncio.Event)


class Workers:
    """Starts and ends the node's workers through the fork server. `on_end` is called for each, dead or killed."""

    def __init__(
        self,
        command: Sequence[str],
        preload: Sequence[str],
        on_end: Callable[[WorkerEnd], None],
        python: str = sys.executable,
        on_start: Callable[[int, int], None] = lambda local_rank, pid: None,
    ) -> None:
        """`python` runs the script where no fork can; `on_start` is told each worker's local rank and process."""
        self._command = tuple(command)
        self._preload = preload
        self._on_end = on_end
        self._python = python
        self._on_start = on_start
        self._server: ForkServer | None = None
        self._running: dict[int, _Worker] = {}
        self._last = 0

    async def wait_until_ready(self, plain: bool) -> tuple[str, ...]:
        """Until workers can be started; lines for the log. A fork server that ended is replaced."""
        if self._server is not None:
            if self._server.alive:
                return ()
            await self._server.wait_until_buried()  # Or its end would be taken for that of the next one's workers.
        self._server = self._start_server(plain)
        try:
            told = await self._server.ready
        except ForkServerLost as error:
            await self._server.wait_until_buried()
            self._server = self._start_server(plain=True)
            await self._server.ready
            return (f"{error}; workers are started by exec, each imports everything itself",)
        lines = [f"preload: {line}" for line in told.warnings]
        if told.plain and not plain:
            lines.append(f"{told.plain}: workers are started by exec, each imports everything itself")
        return tuple(lines)

    def pids(self) -> dict[int, int]:
        """Process of each local rank that lives."""
        pids = self._server.pids if self._server is not None else {}
        return {worker.local_rank: pids[number] for number, worker in self._running.items() if number in pids}

    def start(self, round_: int, starts: Sequence[WorkerSpec]) -> None:
        """One worker for each, in the order of local ranks. None may be running."""
        assert not self._running, "the workers of the round before are alive"
        for local_rank, start in enumerate(starts):
            self._last += 1
            traceback = Path(start.environment[TRACEBACK_VARIABLE])
            traceback.unlink(missing_ok=True)
            self._running[self._last] = _Worker(round_, local_rank, start.output, traceback)
            try:
                if self._server is None:
                    raise ForkServerLost("no fork server")
                own = () if start.command == self._command else start.command
                spawn = Spawn(self._last, start.environment, own, tuple(start.cpus))
                self._server.spawn(spawn, start.output.stdout, start.output.stderr)
            except ForkServerLost:
                pass  # Its loss ends all workers, also this one, which never began.
            finally:
                start.output.close_descriptors()
        if self._server is None or not self._server.alive:
            self._on_lost()

    def signal_all(self, signum: int) -> None:
        """To every worker that lives, with its process group."""
        if self._server is not None and self._server.alive:
            for number in self._running:
                self._server.signal(number, signum)

    async def wait_for_exits(self) -> None:
        """Until the ends of all that are dead by now were told: the fork server may be slower than the master."""
        pids = self.pids()
        for worker in list(self._running.values()):
            if (pid := pids.get(worker.local_rank)) and start_time(pid) is None:
                await worker.dead.wait()

    async def wait_until_gone(self) -> None:
        """Until no worker lives."""
        for worker in list(self._running.values()):
            await worker.dead.wait()

    async def end(self, grace_s: float, signum: int) -> None:
        """That signal, after the grace SIGKILL; returns when all are dead."""
        self.signal_all(signum)
        try:
            async with asyncio.timeout(grace_s):
                await self.wait_until_gone()
        except TimeoutError:
            self.signal_all(signal.SIGKILL)
            await self.wait_until_gone()

    async def close(self) -> None:
        """End the fork server, and whoever lives with it."""
        if self._server is not None and self._server.alive:
            await self._server.close()
        self._on_lost()

    def _start_server(self, plain: bool) -> ForkServer:
        return ForkServer(
            self._command,
            self._preload,
            self._on_forked,
            self._on_exited,
            self._on_lost,
            plain=plain,
            python=self._python,
        )

    def _on_forked(self, told: Forked) -> None:
        if worker := self._running.get(told.id):
            self._on_start(worker.local_rank, told.pid)

    def _on_exited(self, told: Exited) -> None:
        worker = self._running.pop(told.id)
        worker.output.close()
        worker.dead.set()
        file = worker.output.error_file
        reply = _read_text(Path(file)) if file else ""
        error = _error_in(reply) or _read_text(worker.traceback) or worker.output.last_words()
        end = WorkerEnd(
            worker.round,
            worker.local_rank,
            told.exit_code,
            told.time,
            error[-LAST_WORDS:],
            told.pid,
            file if reply else "",
            reply,
        )
        self._on_end(end)

    def _on_lost(self) -> None:
        """The fork server is dead: so are its workers."""
        for number in list(self._running):
            self._on_exited(Exited(number, -signal.SIGKILL, 0.0, 0))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _error_in(reply: str) -> str:
    """The traceback that torch's `record` or the script itself wrote; empty where there is none to read."""
    try:
        message = json.loads(reply)["message"]
    except (ValueError, KeyError, TypeError):
        return ""
    if not isinstance(message, dict):
        return str(message)
    extra = message.get("extraInfo") or {}
    return str(extra.get("py_callstack") or message.get("message") or "")
