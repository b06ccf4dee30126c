"""The stacks of a node's workers, as a log."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from everstep.runtime.agent.dependencies import Dependencies
from everstep.runtime.watch.read_stacks import read_stacks
from everstep.runtime.watch.stacks import RankStacks, as_text


async def write_stacks(
    pids: Mapping[int, int], boards: Mapping[int, Path], why: str, name: str, dependencies: Dependencies
) -> list[RankStacks]:
    """Read the stacks of these ranks, print them, keep them as a log of that name, and return them."""
    dependencies.say(f"stacks of ranks {', '.join(map(str, pids))}: {why}")
    stacks = await read_stacks(pids, boards=boards)
    text = "".join(map(as_text, stacks))
    dependencies.say(text)
    try:
        await asyncio.to_thread(dependencies.keep_log, name, text.encode())
    except OSError as error:
        dependencies.say(f"{name} is not in the store: {error}")
    return stacks
