"""The workers of one node: started together, watched, ended together; what they print goes to the node's log."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from runtime.agent.environment import ERROR_FILE_VARIABLE
from runtime.agent.forking import Exited, ForkServer, ForkServerLost

LAST_WORDS = 16 << 10
"""Bytes of a worker's output that are kept for the error of a fault."""
_CHUNK = 1 << 16


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
    """What it wrote to its error file, else its last words; at most 16 KiB."""


class Output:
    """A worker's stdout and stderr: line by line to the log, the end of it kept."""

    def __init__(self, log: int, prefix: str) -> None:
        self._log = log
        self._prefix = prefix.encode()
        self._line = b""
        self._last = bytearray()
        self._read, self.write_end = os.pipe()
        os.set_blocking(self._read, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self._readable)

    def close(self) -> None:
        """Read what is still in the pipe, then let go of it."""
        while self._take():
            pass
        self._loop.remove_reader(self._read)
        os.close(self._read)
        if self._line:
            self._write(self._line + b"\n")
            self._line = b""

    def last_words(self) -> str:
        """The last 16 KiB."""
        return bytes(self._last[-LAST_WORDS:]).decode(errors="replace").strip()

    def _readable(self) -> None:
        if not self._take():
            self._loop.remove_reader(self._read)

    def _take(self) -> bool:
        """One chunk; False at the end, or when nothing is there now and we are closing."""
        try:
            chunk = os.read(self._read, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            return False
        self._last += chunk
        if len(self._last) > 4 * LAST_WORDS:
            del self._last[:-LAST_WORDS]
        *lines, self._line = (self._line + chunk).split(b"\n")
        if len(self._line) > _CHUNK:
            lines, self._line = [*lines, self._line], b""
        if lines:
            self._write(b"".join(self._prefix + line + b"\n" for line in lines))
        return True

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # A full disk or a closed terminal must not end the training.
            os.write(self._log, data)


@dataclass
class _Worker:
    round: int
    local_rank: int
    output: Output
    error_file: Path
    dead: asyncio.Event = field(default_factory=asyncio.Event)


class Workers:
    """Starts and ends the node's workers through the fork server. `on_end` is called for each, dead or killed."""

    def __init__(
        self, command: Sequence[str], preload: Sequence[str], log: int, on_end: Callable[[WorkerEnd], None]
    ) -> None:
        self._command = command
        self._preload = preload
        self._log = log
        self._on_end = on_end
        self._server: ForkServer | None = None
        self._running: dict[int, _Worker] = {}
        self._last = 0

    async def ready(self, plain: bool) -> tuple[str, ...]:
        """Until workers can be started; lines for the log. A fork server that ended is replaced."""
        if self._server is not None and self._server.alive:
            return ()
        self._server = self._start_server(plain)
        try:
            told = await self._server.ready
        except ForkServerLost as error:
            self._server = self._start_server(plain=True)
            await self._server.ready
            return (f"{error}; workers are started by exec, each imports everything itself",)
        lines = [f"preload: {line}" for line in told.warnings]
        if told.plain and not plain:
            lines.append(f"{told.plain}: workers are started by exec, each imports everything itself")
        return (*lines, f"fork server ready after {told.seconds:.2f} s")

    def start(self, round_: int, environments: Sequence[Mapping[str, str]]) -> None:
        """One worker for each environment, in the order of local ranks. None may be running."""
        assert not self._running, "the workers of the round before are alive"
        for local_rank, environment in enumerate(environments):
            self._last += 1
            prefix = f"[{environment['RANK']}] "
            output = Output(self._log, prefix)
            error_file = Path(environment[ERROR_FILE_VARIABLE])
            error_file.unlink(missing_ok=True)
            self._running[self._last] = _Worker(round_, local_rank, output, error_file)
            try:
                if self._server is None:
                    raise ForkServerLost("no fork server")
                self._server.spawn(self._last, environment, output.write_end, output.write_end)
            except ForkServerLost:
                pass  # Its loss ends all workers, also this one, which never began.
            finally:
                os.close(output.write_end)
        if self._server is None or not self._server.alive:
            self._lost()

    def signal(self, signum: int) -> None:
        """To every worker that lives, with its process group."""
        if self._server is not None and self._server.alive:
            for number in self._running:
                self._server.signal(number, signum)

    async def gone(self) -> None:
        """Until no worker lives."""
        for worker in list(self._running.values()):
            await worker.dead.wait()

    async def end(self, grace_s: float) -> None:
        """SIGTERM, after the grace SIGKILL; returns when all are dead."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self.gone()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.gone()

    async def close(self) -> None:
        """End the fork server, and whoever lives with it."""
        if self._server is not None and self._server.alive:
            await self._server.close()
        self._lost()

    def _start_server(self, plain: bool) -> ForkServer:
        return ForkServer(self._command, self._preload, self._exited, self._lost, plain=plain)

    def _exited(self, told: Exited) -> None:
        worker = self._running.pop(told.id)
        worker.output.close()
        worker.dead.set()
        error = _error_file(worker.error_file) or worker.output.last_words()
        self._on_end(WorkerEnd(worker.round, worker.local_rank, told.exit_code, told.time, error[-LAST_WORDS:]))

    def _lost(self) -> None:
        """The fork server is dead: so are its workers."""
        for number in list(self._running):
            self._exited(Exited(number, -signal.SIGKILL, 0.0))


def _error_file(path: Path) -> str:
    """The traceback that torch's `record` or the script itself wrote; empty where there is none to read."""
    try:
        message = json.loads(path.read_bytes())["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if not isinstance(message, dict):
        return str(message)
    extra = message.get("extraInfo") or {}
    return str(extra.get("py_callstack") or message.get("message") or "")
