"""Processes of this machine that a fault is done to: found, killed, slowed down; and those that make a load."""

import asyncio
import errno
import hashlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from everstep.runtime.chaos import clock, load
from everstep.runtime.chaos.injector import Fault, FiredFault, Kind, NotFiredError, NotPossibleError
from everstep.runtime.diagnosis.measurement_server import PROCESS_NAME
from everstep.runtime.system.cpus import cpu_quota, usable_cpus, used_cpu_s
from everstep.runtime.system.oom import OomCounter, counter_of
from everstep.runtime.system.processes import start_time

AGENT_SERVER = "everstep.runtime.agent.forkserver"
"""Module of the process that a node's training processes are forked from."""
_LOOK_S = 0.05
_FIRST_KILLED = 1000
"""The oom_score_adj of the process that the kernel kills first."""
_PERIOD_S = 0.1
"""Of stopping and continuing a slow node."""


@contextmanager
def alone(kind: Kind, whom: str) -> Iterator[None]:
    """No other fault of that kind is done to `whom` meanwhile, by any process of this machine: the first of two that
    ends would undo both. Raises NotPossibleError: one is under way."""
    name = hashlib.sha256(f"{kind} {whom}".encode()).hexdigest()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
        try:
            mark.bind(f"\0everstep-chaos-{name}")  # unix(7), abstract: the name ends with this process at the latest.
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise NotPossibleError(f"another {kind} of it is under way; try again when that one is over") from None
        yield


def children_of(process: psutil.Process) -> list[psutil.Process]:
    """Its child processes; none if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.children()
    return []


def children_running(pid: int, module: str) -> list[psutil.Process]:
    """The child processes of a node's agent that run that module."""
    processes = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with suppress(psutil.NoSuchProcess):
                if module in child.cmdline():
                    processes.append(child)
    return processes


def workers_of(pid: int) -> list[psutil.Process]:
    """The training processes of a node's agent: its fork server's children."""
    return [worker for server in children_running(pid, AGENT_SERVER) for worker in children_of(server)]


def server_of(pid: int) -> list[psutil.Process]:
    """The fork server of a node's agent that has the training processes, not its clone; the first if none has any."""
    servers = children_running(pid, AGENT_SERVER)
    return [server for server in servers if children_of(server)][:1] or servers[:1]


def agent_and_below(pid: int) -> list[psutil.Process]:
    """A node's agent and its processes; none if it has ended."""
    with suppress(psutil.NoSuchProcess):
        agent = psutil.Process(pid)
        return [agent, *agent.children(recursive=True)]
    return []


def process_name(pid: int) -> str:
    """Tells a process from a later one with its number."""
    return f"{pid} {start_time(pid)}"


def stands_still(process: psutil.Process) -> bool:
    """Is it stopped?"""
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_STOPPED
    return False


def resume(processes: list[psutil.Process]) -> None:
    """Let them run on."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()


async def kill(kind: Kind, node: str, processes: list[psutil.Process]) -> FiredFault:
    """SIGKILL of all. Raises NotFiredError if any of them still runs after 10 s."""
    moment = time.time()
    for number, process in enumerate(processes):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            if not number:
                raise
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, 10)
    still_running = [process.pid for process in alive if is_running(process)]
    if still_running:
        raise NotFiredError(f"SIGKILL, but {still_running} still run")
    what = f"process {processes[0].pid}" if len(processes) == 1 else f"{len(processes)} processes"
    return FiredFault(kind, node, moment, f"SIGKILL of {what}; ended")


def is_running(process: psutil.Process) -> bool:
    """Is it there, and not a zombie?"""
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


async def slow_down(workers: list[psutil.Process], fault: Fault) -> str:
    """Stop them for a share of each period; what was seen of it. Raises NotPossibleError; psutil.NoSuchProcess: one was
    gone at once."""
    with alone(fault.kind, process_name(workers[0].pid)):
        return await _stop_and_continue(workers, fault)


async def _stop_and_continue(workers: list[psutil.Process], fault: Fault) -> str:
    began, times = time.monotonic(), 0
    try:
        while time.monotonic() < began + fault.seconds:
            for worker in workers:
                worker.suspend()
            await asyncio.sleep(fault.share * _PERIOD_S)
            resume(workers)
            times += 1
            await asyncio.sleep((1 - fault.share) * _PERIOD_S)
    except psutil.NoSuchProcess:
        if not times:
            raise
    finally:
        resume(workers)
    return f"stopped {times} times, {fault.share:.0%} of {time.monotonic() - began:.1f} s"


async def set_clock(pid: int, fault: Fault) -> str:
    """Let the clock of a node's processes be ahead; what was seen of it. Raises NotFiredError, NotPossibleError,
    OSError."""
    with alone(fault.kind, process_name(pid)), clock.ahead(lambda: agent_and_below(pid)) as count:
        if not count:
            raise NotFiredError("the node has ended")
        await asyncio.sleep(fault.seconds)
    return f"{count} processes read a clock that was {clock.AHEAD_S} s ahead for {fault.seconds:g} s"


async def fill_memory(group: Path, fault: Fault) -> str:
    """Fill a control group's memory to a share of its limit; what was seen of it. Raises NotFiredError."""
    filling = await start_load("memory", f"{fault.share}", f"{fault.seconds}", str(group))
    assert filling.stdout, "asked for a pipe"
    line = (await filling.stdout.readline()).decode().split()
    await filling.wait()
    if len(line) != 3:
        raise NotFiredError(f"{group} was not filled to {fault.share:.0%}")
    return f"{int(line[0]) / int(line[2]):.0%} of {int(line[2]) >> 20} MiB used"


async def run_out_of_memory(group: Path, workers: list[psutil.Process]) -> None:
    """Fill the memory of a control group until the kernel kills for it, one of the workers first. Raises NotFiredError,
    OSError."""
    kills, until = OomCounter(counter_of(group)), time.monotonic() + load.FILL_S
    with _killed_first(workers):
        filling = await start_load("memory", "1.5", f"{load.FILL_S}", str(group))
        try:
            while not kills.rose_since_last_call():
                if time.monotonic() > until:
                    raise NotFiredError(f"the kernel killed no process of {group} within {load.FILL_S:.0f} s")
                await asyncio.sleep(_LOOK_S)
        finally:
            await end(filling)


@contextmanager
def _killed_first(workers: list[psutil.Process]) -> Iterator[None]:
    """The kernel, out of memory, kills one of these first; afterwards as before. Raises OSError."""
    files = [Path(f"/proc/{worker.pid}/oom_score_adj") for worker in workers]
    scores = [file.read_text() for file in files]
    try:
        for file in files:  # Anybody may raise it; to lower that of the filler needs rights.
            file.write_text(str(_FIRST_KILLED))
        yield
    finally:
        for worker, file, score in zip(workers, files, scores, strict=True):
            with suppress(FileNotFoundError, ProcessLookupError):
                if worker.is_running():
                    file.write_text(score)


async def fail_measurements(agent: int, fault: Fault) -> int:
    """Kill whatever measures for the check of that agent's node, for `seconds` or until the agent has ended. Returns
    how many processes."""
    until, killed = time.time() + fault.seconds, 0
    while time.time() < until and psutil.pid_exists(agent):
        killed += kill_measurements(agent)
        await asyncio.sleep(_LOOK_S)
    return killed


def kill_measurements(agent: int) -> int:
    """Kill what measures at the moment for the check of that agent's node. Returns how many processes."""
    killed = 0
    for process in agent_and_below(agent):
        with suppress(psutil.NoSuchProcess):
            if process.name() == PROCESS_NAME:
                process.kill()
                killed += 1
    return killed


async def load_cores(fault: Fault) -> str:
    """Keep each core busy that this process may use; what was seen of it. Raises NotFiredError."""
    cores = usable_cpus()
    burning = [await start_load("cpu", f"{fault.share}", f"{fault.seconds}") for _ in range(cores)]
    used_before, whole_before = _cpu_use()
    codes = await asyncio.gather(*(process.wait() for process in burning))
    if any(codes):
        raise NotFiredError(f"of {cores} programs that use up a core, {sum(map(bool, codes))} failed")
    used, whole = _cpu_use()
    busy = (used - used_before) / max(whole - whole_before, 1e-9)
    if busy < 0.8 * fault.share:
        raise NotFiredError(f"the cores were only {busy:.0%} busy")
    return f"{cores} cores {busy:.0%} busy for {fault.seconds:g} s"


def _cpu_use() -> tuple[float, float]:
    """(seconds that the cores which this process may use were busy so far, by whomever; all their seconds). With a
    quota, of the control group, and of no more than there are."""
    if quota := cpu_quota():
        return used_cpu_s(), min(quota, usable_cpus()) * time.monotonic()
    allowed, times_by_cpu = os.sched_getaffinity(0), psutil.cpu_times(percpu=True)
    times = [each for cpu, each in enumerate(times_by_cpu) if cpu in allowed] or times_by_cpu
    whole = sum(sum(each[:8]) for each in times)
    return whole - sum(each.idle + each.iowait for each in times), whole


def command_in_group(group: Path, *words: str) -> Iterator[str]:
    """The command line that runs those words in that control group."""
    yield from ("/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group), *words)


async def seconds_to_write(folder: Path, size: int, group: Path | None = None) -> float:
    """How long `size` bytes take to reach the disk of that folder, from inside of that control group. Raises
    NotFiredError."""
    words = [sys.executable, "-m", load.__name__, "write", str(folder), str(size)]
    words = list(command_in_group(group, *words)) if group else words
    writing = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    output, _ = await writing.communicate()
    if writing.returncode:
        raise NotFiredError(f"nothing can be written in {folder}")
    return float(output)


async def can_connect(group: Path, address: str) -> bool:
    """Does a process in the group reach that address?"""
    host, _, port = address.rpartition(":")
    words = command_in_group(group, sys.executable, "-m", load.__name__, "connect", host.strip("[]"), port)
    return await (await asyncio.create_subprocess_exec(*words)).wait() == 0


async def start_load(*words: str) -> asyncio.subprocess.Process:
    """Start a process of `load` with these arguments; its stdout is a pipe."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", load.__name__, *words, stdout=asyncio.subprocess.PIPE
    )


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill it and wait for its end."""
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
