"""What the buttons do: the same verbs that a person types, each in a process of its own."""

import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from everstep.cli.ui.sources import Source
from everstep.errors import BadInput

LIMIT_S = 60.0
EARLY_S = 4.0
"""A verb that runs a whole run again is watched this long; then it continues in the background."""
MOST_OUTPUT = 200_000
_STEP = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class Deed(NamedTuple):
    """What a button did."""

    command: str
    """As a person would type it."""
    code: int
    """The verb's exit code; 0: done, or under way."""
    output: str


def command_of(source: Source, run: str, what: str, job: str = "", nodes: int = 0) -> list[str]:
    """The words after `everstep`. `run` is known to be a run of the source. Raises BadInput."""
    if job and not _STEP.fullmatch(job):
        raise BadInput(f"{job!r} is not a step")
    name, place = f"{run}/{job}" if job else run, list(source.command_flags)
    if what == "scale":
        return ["scale", name, "--nodes", str(nodes), *place]
    if what in ("stop", "retry"):
        return ["workflow", what, run, *place]
    if what == "stacks":
        return ["stacks", name, *place]
    raise BadInput(f"{what!r} cannot be done here")


async def act(command: Sequence[str], log: Path | None) -> Deed:
    """Run the verb. With a `log` it runs a whole run: it writes there, and goes on when this server ends."""
    command_line = shlex.join(["everstep", *command])
    words = [sys.executable, "-m", "everstep", *command]
    if log is not None:
        return await _begin(words, command_line, log)
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), LIMIT_S)
    except TimeoutError:
        process.kill()
        return Deed(command_line, 1, f"it has not ended after {LIMIT_S:g} s")
    text = b"\n".join(part.strip() for part in (out, err) if part.strip())
    return Deed(command_line, process.returncode or 0, text.decode(errors="replace")[:MOST_OUTPUT])


async def _begin(words: Sequence[str], command_line: str, log: Path) -> Deed:
    with log.open("wb") as file:
        # Not by asyncio, which kills its processes when its loop ends.
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    with suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(process.wait, EARLY_S)
    text = (await asyncio.to_thread(log.read_text, errors="replace"))[:MOST_OUTPUT].strip()
    if process.returncode is not None:
        return Deed(command_line, process.returncode, text)
    return Deed(command_line, 0, f"process {process.pid} runs it; its output is in {log}")
