"""The stacks of a node's workers, read from outside by py-spy, which works for hung processes too."""

import asyncio
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from everstep.runtime.agent.dependencies import Dependencies

DUMP_S = 20.0
"""Time limit for one process."""


async def read_stacks(pids: Mapping[int, int], timeout_s: float = DUMP_S) -> str:
    """The stacks of all threads of these processes, by rank, as text for a log; for a failure, the reason."""
    texts = await asyncio.gather(*(_read_process_stacks(pid, timeout_s) for pid in pids.values()))
    return "".join(
        f"--- rank {rank}, process {pid}\n{text}\n" for (rank, pid), text in zip(pids.items(), texts, strict=True)
    )


async def write_stacks(pids: Mapping[int, int], why: str, name: str, dependencies: Dependencies) -> None:
    """Print the stacks, and keep them as a log of that name."""
    dependencies.say(f"stacks of ranks {', '.join(map(str, pids))}: {why}")
    text = await read_stacks(pids)
    dependencies.say(text)
    try:
        await asyncio.to_thread(dependencies.keep_log, name, text.encode())
    except OSError as error:
        dependencies.say(f"{name} is not in the store: {error}")


async def _read_process_stacks(pid: int, timeout_s: float) -> str:
    beside = Path(sys.executable).parent / "py-spy"
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return "no stacks: py-spy is not installed; pip install py-spy"
    process = await asyncio.create_subprocess_exec(
        program, "dump", "--pid", str(pid), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"no stacks: py-spy did not end within {timeout_s:g} s"
    text = output.decode(errors="replace").strip()
    return text if process.returncode == 0 else f"no stacks: {text}"
