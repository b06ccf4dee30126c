"""Pods are processes: their end is seen, whatever became of the watching of others."""

import asyncio
import os
import subprocess
from contextlib import suppress

from runtime.workflow.pods import gone, start_time


def test_an_end_is_seen_after_the_watching_of_another_was_given_up() -> None:
    """The next descriptor has the number of the one given up; once the loop took it for that, and saw no end."""

    async def seen(other: int, process: subprocess.Popen[bytes]) -> None:
        descriptor = os.dup(0)
        os.close(descriptor)
        given_up = asyncio.create_task(gone(other, start_time(other)))
        await asyncio.sleep(0)
        given_up.cancel()
        with suppress(asyncio.CancelledError):
            await given_up
        watched = asyncio.create_task(gone(process.pid, start_time(process.pid)))
        await asyncio.sleep(0)
        assert os.readlink(f"/proc/self/fd/{descriptor}") == "anon_inode:[pidfd]"
        process.kill()
        async with asyncio.timeout(60):
            await watched

    with subprocess.Popen(["sleep", "600"]) as other, subprocess.Popen(["sleep", "600"]) as process:
        try:
            asyncio.run(seen(other.pid, process))
        finally:
            other.kill()
            process.kill()
