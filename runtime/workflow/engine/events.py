"""The event log of a run: `events.jsonl`, one event a line. All other state is folded from it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec


class RunCreated(msgspec.Struct, frozen=True, tag=True):
    """The run begins."""

    time: float
    name: str
    uid: str


class PodStarted(msgspec.Struct, frozen=True, tag=True):
    """A node's process runs."""

    time: float
    node: str
    pid: int
    start_time: int
    """Ticks after boot, from /proc: tells the process from a later one with the same pid."""


class PodLoading(msgspec.Struct, frozen=True, tag=True):
    """A node's input artifacts are being fetched. Its deadline counts from here, as with Argo's init container."""

    time: float
    node: str


class PodReady(msgspec.Struct, frozen=True, tag=True):
    """A daemon has passed its readiness probe; what waits for it goes on."""

    time: float
    node: str


INIT_FAILED = "init: Error"
"""How the error of a pod begins whose input artifacts could not be loaded: nothing of it has run."""


class PodEnded(msgspec.Struct, frozen=True, tag=True):
    """A node's process has ended. `exit_code` is None when it vanished without recording one."""

    time: float
    node: str
    exit_code: int | None
    parameters: dict[str, str] = {}
    artifacts: dict[str, str] = {}
    """Key of each output artifact in the repository."""
    error: str = ""
    """Which outputs are missing, in Argo's words."""
    said: str = ""
    """Why the container failed although its command did not: it could not be started, or an output is a directory."""
    result: str | None = None
    """The standard output, where another node reads it."""
    containers: list[tuple[str, int, str]] = []
    """(name, exit code, the container whose failure kept it from running) for each of several containers."""


class ShutdownAsked(msgspec.Struct, frozen=True, tag=True):
    """The run is to stop: `Stop` (the exit handler still runs) or `Terminate`."""

    time: float
    strategy: str


class RunResumed(msgspec.Struct, frozen=True, tag=True):
    """A stopped or failed run is resumed: what did not succeed runs again."""

    time: float
    again: list[str] = []
    """Nodes that succeeded and run again all the same, with everything after them."""
    parameters: dict[str, str] = {}
    """New values of workflow parameters."""
    after_failures: bool = False
    """Whether hooks of what failed and what came after it run again, too. Logs of earlier versions do not say so."""


class NodesResumed(msgspec.Struct, frozen=True, tag=True):
    """Suspended nodes are resumed, and a workflow that is suspended as a whole."""

    time: float
    nodes: list[str]
    chosen: bool = False
    """Whether the nodes were selected; otherwise all suspended nodes were meant."""


class GateOpened(msgspec.Struct, frozen=True, tag=True):
    """A waiting call has its locks, or its memo was looked up."""

    time: float
    node: str
    hit: bool = False
    parameters: list[dict[str, Any]] = []
    artifacts: list[dict[str, Any]] = []
    result: str | None = None


class NodeSet(msgspec.Struct, frozen=True, tag=True):
    """A suspended node is given outputs, a message or its final phase."""

    time: float
    node: str
    phase: str = ""
    message: str = ""
    parameters: dict[str, str] = {}


Event = (
    RunCreated | PodLoading | PodStarted | PodReady | PodEnded | ShutdownAsked | RunResumed | NodesResumed | NodeSet
    | GateOpened
)  # fmt: skip
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class CorruptLogError(ValueError):
    """A line in the middle of the log is not an event. The message is one line that names it."""


class EventLog:
    """Appends events durably. Only the holder of the run's lock may open it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._end = len(b"".join(_complete_lines(path)))
        self._truncate_tail()

    def append(self, event: Event) -> None:
        """Write one event and make it durable. Raises OSError, such as a full disk; then the log is unchanged."""
        line = memoryview(_encode(event) + b"\n")
        try:
            bytes_written = 0
            while bytes_written < len(line):
                bytes_written += os.write(self._file, line[bytes_written:])
            os.fdatasync(self._file)
        except OSError:
            self._truncate_tail()
            raise
        self._end += len(line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _truncate_tail(self) -> None:
        """Cut a torn event off. Invariant: the next event begins where the last complete one ends."""
        os.ftruncate(self._file, self._end)
        os.lseek(self._file, self._end, os.SEEK_SET)


def read_events(path: Path) -> Iterator[Event]:
    """The events so far, without a torn last line, whose writer was killed. Raises CorruptLogError."""
    for number, line in enumerate(_complete_lines(path), 1):
        try:
            yield _decode(line)
        except msgspec.DecodeError as error:
            raise CorruptLogError(
                f"{path} line {number} is not an event: {error}; start the run under another name"
            ) from None


def _complete_lines(path: Path) -> list[bytes]:
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith(b"\n")]
