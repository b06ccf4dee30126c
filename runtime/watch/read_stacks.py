"""Reads the stacks of live processes, all at the same time: by py-spy from outside; where that is refused, the process
writes them itself, by faulthandler, on a signal."""

import asyncio
import math
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from everstep.runtime.watch.board import STACK_SIGNAL, THREAD, stack_file
from everstep.runtime.watch.dumps import parse_faulthandler, parse_py_spy
from everstep.runtime.watch.process_state import catches, process_state
from everstep.runtime.watch.stacks import RankStacks, Thread, without_launcher

DUMP_S = 20.0
"""Time limit for py-spy, over all processes."""
_AT_ONCE = 16
"""Processes of py-spy."""
_ANSWER_S, _LOOK_EVERY_S = 2.0, 0.02
_QUIET_S = 0.25
"""A process that writes its stacks, and nothing for so long, has written all: nothing marks their end."""


async def read_stacks(
    pids: Mapping[int, int],
    *,
    native: bool = False,
    boards: Mapping[int, Path] | None = None,
    node: str = "",
    timeout_s: float = DUMP_S,
) -> list[RankStacks]:
    """The stacks of these processes (rank -> pid); for a failure, the reason. `boards`: each rank's."""
    boards, free = boards or {}, asyncio.Semaphore(_AT_ONCE)
    reads = (_read(rank, pid, native, boards.get(rank), node, timeout_s, free) for rank, pid in pids.items())
    return list(await asyncio.gather(*reads))


async def _read(
    rank: int, pid: int, native: bool, board: Path | None, node: str, timeout_s: float, free: asyncio.Semaphore
) -> RankStacks:
    stacks = RankStacks(rank, (), pid, node)
    if (state := process_state(pid)) is None:
        return msgspec.structs.replace(stacks, failure=f"process {pid} has ended")
    # ptrace cannot stop a process that is stopped already, or in an uninterruptible wait: read its memory only.
    is_stuck, remark = state.state in "TtD", ""
    words = ["--nonblocking"] if is_stuck else ["--native"] if native else []
    if native and is_stuck:
        remark = f"no native frames: the process is {state.meaning}"
    try:
        threads = await _py_spy(pid, words, timeout_s, free)
    except _NoStacksError as error:
        threads, more = await _ask_process(pid, board)
        remark = f"{error}; {more}" if more else str(error)
    return without_launcher(msgspec.structs.replace(stacks, threads=threads, failure=remark), THREAD)


class _NoStacksError(Exception):
    pass


async def _py_spy(pid: int, words: Sequence[str], timeout_s: float, free: asyncio.Semaphore) -> tuple[Thread, ...]:
    beside = Path(sys.executable).parent / "py-spy"
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        raise _NoStacksError("py-spy is not installed; pip install py-spy")
    try:
        async with asyncio.timeout(timeout_s), free:
            exit_code, output, errors = await _output_of(program, "dump", "--json", "--pid", str(pid), *words)
    except TimeoutError:
        raise _NoStacksError(f"py-spy did not end within {timeout_s:g} s") from None
    except (OSError, RuntimeError) as error:  # No process, thread or descriptor is left for it.
        raise _NoStacksError(f"py-spy cannot be started: {error}") from None
    if exit_code:
        lines = [line.strip() for line in errors.decode(errors="replace").partition("Stack backtrace")[0].splitlines()]
        raise _NoStacksError("py-spy: " + " ".join(filter(None, lines))[:300])
    try:
        return parse_py_spy(output)
    except msgspec.MsgspecError as error:
        raise _NoStacksError(f"py-spy's output cannot be read: {error}") from None


async def _output_of(*command: str) -> tuple[int | None, bytes, bytes]:
    """Exit code, stdout and stderr of this command, which is killed if nobody waits any longer. Raises OSError,
    RuntimeError."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, output, errors


async def _ask_process(pid: int, board: Path | None) -> tuple[tuple[Thread, ...], str]:
    """The stacks that the process itself writes, and a remark; both empty if it writes none. None that are incomplete:
    only the last one of all is the main thread's."""
    if board is None or not catches(pid, STACK_SIGNAL):
        return (), ""
    answer = stack_file(board)
    try:
        before = answer.stat().st_size
        os.kill(pid, STACK_SIGNAL)
        size, grew_at, deadline = before, math.inf, time.monotonic() + _ANSWER_S
        while (now := time.monotonic()) < grew_at + _QUIET_S:
            if now >= deadline:
                return (), f"it has not written them all within {_ANSWER_S:g} s" if size > before else ""
            await asyncio.sleep(_LOOK_EVERY_S)
            if size != (size := answer.stat().st_size):
                grew_at = time.monotonic()
        threads = parse_faulthandler(answer.read_bytes()[before:].decode(errors="replace"))
        return threads, "written by the process itself" if threads else ""
    except OSError:
        return (), ""
