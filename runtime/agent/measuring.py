"""The process that measures this node for its check: forked by the node's fork server, which has torch imported."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from everstep.runtime.agent.beside import Beside
from everstep.runtime.diagnosis.measurement_process import (
    COMMAND,
    MeasurementProcess,
    is_ready,
    start_measurement_process,
)


@asynccontextmanager
async def measure_beside(beside: Beside) -> AsyncIterator[MeasurementProcess]:
    """A process that is ready to measure, beside any workers; it ends with the block.

    Where the fork server has ended meanwhile, it imports torch itself. Raises MeasurementError if it does not start.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        end, kill = beside.start((*COMMAND, "1"), {"OMP_NUM_THREADS": "1"}, theirs)  # More would make threads.
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    try:
        if await is_ready(reader):
            measuring = MeasurementProcess(reader, writer, end, kill)
            try:
                yield measuring
            finally:
                await measuring.close()
            return
    finally:
        writer.close()
    async with start_measurement_process() as measuring:
        yield measuring
