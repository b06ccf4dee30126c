"""The event log of a run: `events.jsonl`, one event a line, the truth from which everything else is folded."""

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
    """Of the process, as /proc has it: tells it from a later one with its pid."""


class PodLoading(msgspec.Struct, frozen=True, tag=True):
    """A node's input artifacts are fetched: its time runs, as that of a pod whose init container runs."""

    time: float
    node: str


class PodReady(msgspec.Struct, frozen=True, tag=True):
    """A daemon has passed its readiness probe: others go on."""

    time: float
    node: str


class PodEnded(msgspec.Struct, frozen=True, tag=True):
    """A node's process is over. `exit_code` is None when it vanished without one."""

    time: float
    node: str
    exit_code: int | None
    parameters: dict[str, str] = {}
    artifacts: dict[str, str] = {}
    """Key of each output artifact in the repository."""
    error: str = ""
    """Which outputs are missing, in Argo's words."""
    said: str = ""
    """What made the container fail though its command did not: it could not be started, an output is a directory."""
    result: str | None = None
    """Its standard output, where somebody reads it."""
    containers: list[tuple[str, int, str]] = []
    """(name, exit code, whose failure kept it from running) of each of several containers."""


class ShutdownAsked(msgspec.Struct, frozen=True, tag=True):
    """Somebody stops the run: `Stop` (the exit handler still runs) or `Terminate`."""

    time: float
    strategy: str


class RunResumed(msgspec.Struct, frozen=True, tag=True):
    """A stopped or failed run is taken up again: what did not succeed begins anew."""

    time: float
    again: list[str] = []
    """Nodes that did, and begin anew all the same, with what came after them."""
    parameters: dict[str, str] = {}
    """The workflow's, with other values than before."""


class NodesResumed(msgspec.Struct, frozen=True, tag=True):
    """Somebody lets suspended nodes go on, and a workflow that is held back as a whole."""

    time: float
    nodes: list[str]
    chosen: bool = False
    """They were selected; all were meant otherwise."""


class GateOpened(msgspec.Struct, frozen=True, tag=True):
    """The locks of a node to be are its own now; or it was looked up what is remembered of it."""

    time: float
    node: str
    hit: bool = False
    parameters: list[dict[str, Any]] = []
    artifacts: list[dict[str, Any]] = []
    result: str | None = None


class NodeSet(msgspec.Struct, frozen=True, tag=True):
    """Somebody gives a suspended node outputs, a message, or its end."""

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
    """A line in the middle of the log is no event: one line that names it."""


class EventLog:
    """Appends durably. One writer: whoever holds the run's lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._end = len(b"".join(_complete_lines(path)))
        self._truncate_tail()

    def append(self, event: Event) -> None:
        """Write one event and make it durable. Raises OSError (the disk is full): then nothing of it is there."""
        line = memoryview(_encode(event) + b"\n")
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fdatasync(self._file)
        except OSError:
            self._truncate_tail()
            raise
        self._end += len(line)

    def close(self) -> None:
        """No more events."""
        os.close(self._file)

    def _truncate_tail(self) -> None:
        """Invariant: the next event begins where the last whole one ends."""
        os.ftruncate(self._file, self._end)
        os.lseek(self._file, self._end, os.SEEK_SET)


def read_events(path: Path) -> Iterator[Event]:
    """The events so far; a torn last line (its writer was killed) does not count. Raises TornError."""
    for number, line in enumerate(_complete_lines(path), 1):
        try:
            yield _decode(line)
        except msgspec.DecodeError as error:
            raise CorruptLogError(
                f"{path} line {number} is no event: {error}; start the run under another name"
            ) from None


def _complete_lines(path: Path) -> list[bytes]:
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith(b"\n")]
