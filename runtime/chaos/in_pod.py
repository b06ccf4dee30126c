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
from pathlib import Path

import psutil

from everstep.runtime.chaos import clock, load, victims
from everstep.runtime.chaos.injector import Fault, FiredFault, Kind, NotFiredError, NotPossibleError
from everstep.runtime.system.oom import own_counter_path

KINDS = (Kind.CRASH, Kind.FORK_SERVER, Kind.SLOW, Kind.CPU, Kind.CLOCK, Kind.MEMORY)
"""What it sees the effect of. OOM and FAULTY may end its own container: the job's journal shows their effect."""
_AGENT = "everstep.runtime.agent"
_START_S = 10.0
"""A container's first process runs within this time."""


def find_agent() -> int:
    """The pid of the node's agent, which may just have been started. Raises NotFiredError."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if _AGENT in process.cmdline():
                    return process.pid
        time.sleep(0.1)
    raise NotFiredError("no agent runs in this pod")


async def inject(fault: Fault, agent: int) -> FiredFault:
    """Do it to the processes of that agent. Raises NotFiredError, NotPossibleError."""
    moment = time.time()
    if fault.kind is Kind.CPU:
        return FiredFault(fault.kind, "", moment, await victims.load_cores(fault))
    if fault.kind is Kind.CLOCK:
        if why := clock.refusal():
            raise NotFiredError(why)
        return FiredFault(fault.kind, "", moment, await victims.set_clock(agent, fault))
    if fault.kind is Kind.FAULTY:
        killed = await victims.fail_measurements(agent, fault)
        return FiredFault(fault.kind, "", moment, f"{killed} measurements killed")
    if fault.kind is Kind.MEMORY:
        return FiredFault(fault.kind, "", moment, await victims.fill_memory(_memory_group(), fault))
    processes = victims.server_of(agent) if fault.kind is Kind.FORK_SERVER else victims.workers_of(agent)
    if not processes:
        raise NotFiredError("the node has no such process")
    try:
        if fault.kind is Kind.OOM:
            await victims.run_out_of_memory(_memory_group(), processes)
            return FiredFault(fault.kind, "", moment, "the kernel killed a process for lack of memory")
        if fault.kind is Kind.SLOW:
            return FiredFault(fault.kind, "", moment, await victims.slow_down(processes, fault))
        return await victims.kill(fault.kind, "", [random.choice(processes)])
    except psutil.NoSuchProcess as error:
        raise NotFiredError(f"process {error.pid} ended before the fault could reach it") from None


def _memory_group() -> Path:
    """The control group of this container. Raises NotFiredError: it has no memory limit."""
    counter = own_counter_path()
    if counter is None or not load.memory_use(counter.parent)[1]:
        raise NotFiredError("the pod has no memory limit: the job must set one (resources: {memory: 2Gi})")
    return counter.parent


def main(words: list[str]) -> int:
    """Returns the exit code."""
    kind, seconds, share = words
    try:
        fault_fired = asyncio.run(inject(Fault(Kind(kind), "", float(seconds), float(share)), find_agent()))
    except (NotFiredError, NotPossibleError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"time": fault_fired.time, "evidence": fault_fired.evidence}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
