"""A look at a node's workers while they hang: their stacks, as a log, and where each of them stands."""

import asyncio
from collections.abc import Sequence

import msgspec

from everstep.runtime.agent.dependencies import Dependencies
from everstep.runtime.watch.find_workers import LocalWorker
from everstep.runtime.watch.hang_culprit import Standing
from everstep.runtime.watch.looks import look
from everstep.runtime.watch.stacks import as_text


async def write_stacks(
    workers: Sequence[LocalWorker], why: str, name: str, dependencies: Dependencies
) -> list[Standing]:
    """Print the stacks of these workers and keep them as a log of that name. Returns where the workers stand."""
    dependencies.say(f"stacks of ranks {', '.join(str(worker.board.rank) for worker in workers)}: {why}")
    looks = await look(workers)
    text = "".join(as_text(one.stacks) for one in looks)
    dependencies.say(text)
    try:
        await asyncio.to_thread(dependencies.keep_log, name, text.encode())
    except OSError as error:
        dependencies.say(f"{name} is not in the store: {error}")
    return [msgspec.structs.replace(one.standing, place=one.standing.place[:500]) for one in looks if one.standing]
