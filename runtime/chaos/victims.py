"""Processes of this machine that a fault is done to: found, killed, looked at; and those that make a load."""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from everstep.runtime.chaos import load
from everstep.runtime.chaos.injector import FiredFault, Kind, NotFiredError
from everstep.runtime.platform.registry import Registration


def children_of(process: psutil.Process) -> list[psutil.Process]:
    """Its child processes; none if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.children()
    return []


def children_running(entry: Registration, module: str) -> list[psutil.Process]:
    """The node's child processes that run that module."""
    processes = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(entry.pid).children():
            with suppress(psutil.NoSuchProcess):
                if module in child.cmdline():
                    processes.append(child)
    return processes


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


def command_in_group(group: Path, *words: str) -> Iterator[str]:
    """The command line that runs those words in that control group."""
    yield from ("/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group), *words)


async def can_connect(group: Path, address: str) -> bool:
    """Does a process in the group reach that address?"""
    host, _, port = address.rpartition(":")
    words = command_in_group(group, sys.executable, "-m", load.__name__, "connect", host, port)
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
