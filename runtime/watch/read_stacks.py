"""Reads the stacks of live processes, all at the same time: by py-spy from outside; where that is refused, the process
writes them itself, by faulthandler, on a signal."""

import asyncio
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
"""Time limit for one process."""
_ANSWER_S = 2.0
_LOOK_EVERY_S = 0.02


async def read_stacks(
    pids: Mapping[int, int],
    *,
    native: bool = False,
    boards: Mapping[int, Path] | None = None,
    node: str = "",
    timeout_s: float = DUMP_S,
) -> list[RankStacks]:
    """The stacks of these processes (rank -> pid); for a failure, the reason. `boards`: each rank's."""
    boards = boards or {}
    reads = (_read(rank, pid, native, boards.get(rank), node, timeout_s) for rank, pid in pids.items())
    return list(await asyncio.gather(*reads))


async def _read(rank: int, pid: int, native: bool, board: Path | None, node: str, timeout_s: float) -> RankStacks:
    stacks = RankStacks(rank, (), pid, node)
    if (state := process_state(pid)) is None:
        return msgspec.structs.replace(stacks, failure=f"process {pid} has ended")
    # ptrace cannot stop a process that is stopped already, or in an uninterruptible wait: read its memory only.
    is_stuck, remark = state.state in "TtD", ""
    words = ["--nonblocking"] if is_stuck else ["--native"] if native else []
    if native and is_stuck:
        remark = f"no native frames: the process is {state.meaning}"
    try:
        threads = await _py_spy(pid, words, timeout_s)
    except _NoStacksError as error:
        threads = await _ask_process(pid, board)
        remark = f"{error}; written by the process itself" if threads else str(error)
    return without_launcher(msgspec.structs.replace(stacks, threads=threads, failure=remark), THREAD)


class _NoStacksError(Exception):
    pass


async def _py_spy(pid: int, words: Sequence[str], timeout_s: float) -> tuple[Thread, ...]:
    beside = Path(sys.executable).parent / "py-spy"
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        raise _NoStacksError("py-spy is not installed; pip install py-spy")
    process = await asyncio.create_subprocess_exec(
        program, "dump", "--json", "--pid", str(pid), *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise _NoStacksError(f"py-spy did not end within {timeout_s:g} s") from None
    if process.returncode:
        lines = [line.strip() for line in errors.decode(errors="replace").partition("Stack backtrace")[0].splitlines()]
        raise _NoStacksError("py-spy: " + " ".join(filter(None, lines))[:300])
    try:
        return parse_py_spy(output)
    except msgspec.MsgspecError as error:
        raise _NoStacksError(f"py-spy's output cannot be read: {error}") from None


async def _ask_process(pid: int, board: Path | None) -> tuple[Thread, ...]:
    """The stacks that the process itself writes; empty if it does not."""
    if board is None or not catches(pid, STACK_SIGNAL):
        return ()
    answer = stack_file(board)
    try:
        before = answer.stat().st_size
        os.kill(pid, STACK_SIGNAL)
        size, deadline = before, time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_EVERY_S)
            if size == (size := answer.stat().st_size) > before:
                break
        return parse_faulthandler(answer.read_bytes()[before:].decode(errors="replace"))
    except OSError:
        return ()
