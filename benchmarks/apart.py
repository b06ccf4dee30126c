"""Work in a process of its own: what breaks a device for one process, hangs or crashes leaves the others alone.

The process is a fork, which has imported already what this process has. So this process must not use CUDA itself.
"""

import faulthandler
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeVar

T = TypeVar("T")
_PATIENCE_S = 10.0
"""For an end that was asked for."""
_STACKS_AT = 0.9
"""Of its time: whoever has taken so long says where each of its threads is."""


class PartError(RuntimeError):
    """What the work raised, or how its process ended: one line."""


class PartTimeoutError(PartError):
    """The work took too long."""


def run_apart(work: Callable[[], T], limit_s: float) -> T:
    """What `work` returns, which must be picklable. Raises PartError; PartTimeoutError after `limit_s`.

    Its stacks are printed shortly before. Processes that it has left in its process group are ended.
    """
    forks = multiprocessing.get_context("fork")
    receiver, sender = forks.Pipe(duplex=False)
    sys.stdout.flush()
    process = forks.Process(target=_run, args=(work, sender, _STACKS_AT * limit_s))
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit_s):
            raise PartTimeoutError(f"not done within {limit_s:.0f} s")
        value, problem = receiver.recv()
    except EOFError:
        process.join(_PATIENCE_S)
        raise PartError(f"its process ended with exit code {process.exitcode}") from None
    finally:
        _end(process)
    if problem:
        raise PartError(problem)
    return value


def _run(work: Callable[[], T], sender: Connection, stacks_s: float) -> None:
    """In the new process."""
    os.setsid()
    faulthandler.dump_traceback_later(stacks_s, file=sys.__stderr__ or 2)
    try:
        answer = work(), ""
    except BaseException as error:  # noqa: BLE001 - whatever it is: it is reported, and this process ends
        traceback.print_exc()
        answer = None, " ".join(f"{type(error).__name__}: {error}".split())[:300]
    sender.send(answer)
    sender.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Without a wait for its threads.


def _end(process: BaseProcess) -> None:
    """End what is left of its group; first by SIGTERM, by which a launcher ends its agents."""
    until = time.monotonic() + _PATIENCE_S
    with suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGTERM)
        while time.monotonic() < until:
            process.join(0.05)
            os.killpg(process.pid or 0, 0)
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
