"""What a launch prints when workers of this node failed, and the copy of the error file for its own parent."""

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from everstep.runtime.agent.environment import ERROR_FILE_VARIABLE
from everstep.runtime.agent.worker_ends import WorkerEnd


def failure_lines(script: str, failures: Sequence[WorkerEnd], first_rank: int) -> Iterator[str]:
    """Which worker failed first, how, and with what error."""
    if not failures:
        return
    first = failures[0]
    code = first.exit_code
    how = f"was ended by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
    when = datetime.fromtimestamp(first.time).isoformat(sep=" ", timespec="seconds") if first.time else "?"
    who = f"rank {first_rank + first.local_rank} (local rank {first.local_rank}, process {first.pid})"
    yield f"{script} failed: {who} {how} at {when}"
    if Path(first.error_file).is_file():
        yield f"  error file: {first.error_file}"
    yield from (f"  {line}" for line in first.error.splitlines())


def copy_error_file(failures: Sequence[WorkerEnd], environment: Mapping[str, str]) -> None:
    """Copy the first failure's error file to our own, with its exit code, as torch's `record` does for torchrun."""
    own = environment.get(ERROR_FILE_VARIABLE)
    if not own or not failures or not failures[0].reply:
        return
    with suppress(OSError, ValueError):
        report = json.loads(failures[0].reply)
        if isinstance(report.get("message"), dict):
            report["message"]["errorCode"] = failures[0].exit_code
        with suppress(FileNotFoundError):
            os.unlink(own)
        Path(own).write_text(json.dumps(report))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
