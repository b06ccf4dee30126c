"""The first process of a container gets each process whose parent has died, and has to wait for its end
(pid_namespaces(7)); otherwise its number is never free, and a cgroup allows only so many.

A killed worker leaves such processes: those of its DataLoader, or what it has started. They are of the worker's session
or of their own, but what the agent itself has started, and waits for, is of the agent's.
"""

import asyncio
import os
from contextlib import suppress
from typing import NoReturn

from everstep.runtime.system.processes import dead_orphans


async def bury_orphans(every_s: float = 10.0) -> NoReturn:
    """Wait for those that have ended, every few seconds, until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        for pid in dead_orphans():
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
