"""The end of a worker, with its error: as torch's `record` or the script wrote it, as Python printed it, or the end of
its output."""

import json
from dataclasses import dataclass
from pathlib import Path

from everstep.runtime.agent.forkserver_client import Exited
from everstep.runtime.agent.output import LAST_WORDS, Output
from everstep.runtime.job.error_kinds import is_echo


@dataclass(frozen=True)
class WorkerEnd:
    """The end of a worker."""

    round: int
    local_rank: int
    exit_code: int
    """Negative for a signal."""
    time: float
    """Unix time."""
    error: str
    """The text of its error file, else its traceback, else the end of its output; at most 16 KiB."""
    pid: int = 0
    error_file: str = ""
    """The file to which torch's `record` wrote the error, if it did; it may be deleted with the node."""
    reply: str = ""
    """The JSON in that file."""


def end_of(exited: Exited, round_: int, local_rank: int, output: Output, traceback: Path) -> WorkerEnd:
    """The end of the worker with that output, which is closed, and that traceback file."""
    file = output.error_file
    reply = _read_text(Path(file)) if file else ""
    error = _error_in(reply) or _read_text(traceback) or output.last_words()
    return WorkerEnd(
        round_, local_rank, exited.exit_code, exited.time, error[-LAST_WORDS:], exited.pid, file if reply else "", reply
    )


def has_own_error(traceback: Path) -> bool:
    """Whether the worker has printed an error that is not an echo of another worker's."""
    error = _read_text(traceback)
    return bool(error) and not is_echo(error, 1)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _error_in(reply: str) -> str:
    """The traceback in an error file that torch's `record` or the script wrote; empty if there is none."""
    try:
        message = json.loads(reply)["message"]
    except (ValueError, KeyError, TypeError):
        return ""
    if not isinstance(message, dict):
        return str(message)
    extra = message.get("extraInfo") or {}
    return str(extra.get("py_callstack") or message.get("message") or "")
