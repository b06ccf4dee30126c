"""The first process of a container waits for processes that were left to it, and for none that others wait for."""

import subprocess
import sys

import pytest

from tests.namespaces import unshare

FIRST_PROCESS = """
import asyncio, subprocess, sys
from everstep.runtime.agent.orphans import bury_orphans
from everstep.runtime.system.processes import all_pids, dead_orphans

async def main():
    own = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    # Of a worker, which leads a session, and has ended with its child.
    subprocess.run(["setsid", "sh", "-c", "true & exec kill -9 $$"])
    while not list(dead_orphans()):
        await asyncio.sleep(0.01)
    asyncio.create_task(bury_orphans(0.01))
    while list(dead_orphans()):
        await asyncio.sleep(0.01)
    print(own.wait(), sorted(all_pids()))

asyncio.run(main())
"""


def test_who_was_left_to_the_first_process_is_waited_for_and_its_own_children_are_not() -> None:
    enter = unshare("-pf", "--mount-proc")
    if enter is None:
        pytest.skip("no mount namespaces here: no process can be the first one")
    command = [*enter, sys.executable, "-c", FIRST_PROCESS]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout == "7 [1]\n", ended.stderr
