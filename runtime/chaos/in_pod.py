"""Faults of a node's processes, done by a program beside them: `python -m everstep.runtime.chaos.in_pod KIND SECONDS
SHARE`, which `on_cluster` executes in the node's pod.

It prints {"time": ..., "evidence": ...}. Exit code 1, with one line on stderr: the fault did not fire.
"""

import asyncio
import json
import random
import sys
import time
from contextlib import suppress

import psutil

from everstep.runtime.chaos import clock, victims
from everstep.runtime.chaos.injector import Fault, FiredFault, Kind, NotFiredError

KINDS = (Kind.CRASH, Kind.FORK_SERVER, Kind.SLOW, Kind.CPU, Kind.CLOCK)
_AGENT = "everstep.runtime.agent"


def find_agent() -> int:
    """The pid of the node's agent. Raises NotFiredError."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if _AGENT in process.cmdline():
                return process.pid
    raise NotFiredError("no agent runs in this pod")


async def inject(fault: Fault, agent: int) -> FiredFault:
    """Do it to the processes of that agent. Raises NotFiredError."""
    moment = time.time()
    if fault.kind is Kind.CPU:
        return FiredFault(fault.kind, "", moment, await victims.load_cores(fault))
    if fault.kind is Kind.CLOCK:
        if why := clock.refusal():
            raise NotFiredError(why)
        return FiredFault(fault.kind, "", moment, await victims.set_clock(agent, fault))
    processes = victims.server_of(agent) if fault.kind is Kind.FORK_SERVER else victims.workers_of(agent)
    if not processes:
        raise NotFiredError("the node has no such process")
    try:
        if fault.kind is Kind.SLOW:
            return FiredFault(fault.kind, "", moment, await victims.slow_down(processes, fault))
        return await victims.kill(fault.kind, "", [random.choice(processes)])
    except psutil.NoSuchProcess as error:
        raise NotFiredError(f"process {error.pid} ended before the fault could reach it") from None


def main(words: list[str]) -> int:
    """Returns the exit code."""
    kind, seconds, share = words
    try:
        fault_fired = asyncio.run(inject(Fault(Kind(kind), "", float(seconds), float(share)), find_agent()))
    except NotFiredError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"time": fault_fired.time, "evidence": fault_fired.evidence}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
