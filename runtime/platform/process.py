"""Nodes that are processes of this machine: detached agents that outlive the master that started them.

The story begins in `ProcessPlatform.create`. A node is registered before it runs (it waits for a line on its stdin), so
a crash of the master cannot leave a node that nobody knows.
"""

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import suppress
from pathlib import Path

from everstep.runtime.platform import Node, NodeEnd, NodeRequest, debris, limits
from everstep.runtime.platform.devices import near_cpus, node_devices, shown_by
from everstep.runtime.platform.registry import Registration, registries_of, registry_of
from everstep.runtime.system import processes
from everstep.runtime.system.oom import was_oom_killed

_GATE = 'read -r go && exec "$@" </dev/null'
"""sh runs this first in the node; without a line from the master it exits."""
_DEATH_S = 10.0
_SHORT_S = 1.0
"""Seconds until a process is watched again that could not be opened for lack of descriptors."""
OOM_KILLED = 247
"""The exit code for out of memory."""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class ProcessPlatform:
    """The nodes of one job, registered in the run's folder. Used from one event loop."""

    def __init__(
        self,
        run_dir: Path,
        job: str,
        command: Sequence[str] = (sys.executable, "-m", "everstep.runtime.agent"),
        shared_memory: Path = debris.SHARED_MEMORY,
        say: Callable[[str], None] = _say,
        own_groups: Path = limits.OWN_GROUPS,
        devices: Sequence[str] = (),
    ) -> None:
        """`own_groups` lists the control groups below which the nodes' groups are created; `devices` are those that the
        nodes share out."""
        self._run_dir = run_dir.absolute()
        self._job = job
        self._command = list(command)
        self._shared_memory = shared_memory
        self._say = say
        self._own_groups = own_groups
        self._devices = devices
        self._unlimited: set[tuple[str, str]] = set()
        self._registry = registry_of(run_dir, job)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._gone: asyncio.Queue[NodeEnd] = asyncio.Queue()

    async def observe(self) -> list[Node]:
        """The job's nodes, including those of an earlier master. A dead node counts until its debris is removed.

        The debris of nodes that died unwatched is removed at once.
        """
        nodes = []
        for entry in list(self._registry.all()):
            if entry.is_alive() or entry.uid in self._watches:
                self._watch(entry)
                nodes.append(entry.node())
            else:
                await self._clean(entry)
        return nodes

    async def create(self, request: NodeRequest) -> Node:
        """Start the node detached, or return the live one of that name. Raises OSError if it cannot be started."""
        entry_before = self._registry.get(request.name)
        if entry_before is not None and entry_before.is_alive():
            self._watch(entry_before)
            return entry_before.node()
        if entry_before is not None:
            await self._clean(entry_before)
        entry, process = self._start(request)
        self._children[entry.uid] = process
        self._watch(entry)
        return entry.node()

    async def delete(self, name: str, uid: str) -> None:
        """SIGKILL the node with everything it started, and remove what it held."""
        entry = self._registry.get(name)
        if entry is None or entry.uid != uid:
            return
        _kill(entry)
        if watch := self._watches.get(uid):
            await asyncio.shield(watch)
        else:
            await self._clean(entry)

    async def node_ends(self) -> AsyncIterator[NodeEnd]:
        """Each node's end, after its debris is removed."""
        while True:
            yield await self._gone.get()

    def _start(self, request: NodeRequest) -> tuple[Registration, subprocess.Popen[bytes]]:
        self._registry.path(request.name)  # Refuses an invalid name before it becomes a path.
        log = self._run_dir / "logs" / self._job / f"{request.name}.log"  # Nodes of other jobs have the same names.
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "EVERSTEP_RUN_DIR": str(self._run_dir), **request.environment}
        environment |= {"EVERSTEP_JOB": self._job, "EVERSTEP_NODE": request.name}
        if devices := node_devices(self._devices, *request.workers):
            environment |= shown_by(devices, environment)
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _GATE, "everstep-node", *self._command, *request.arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        assert process.stdin is not None, "asked for a pipe"
        _bind(process.pid, near_cpus(devices.split(",")))
        began = processes.start_time(process.pid)
        if began is None:
            raise OSError(f"node {request.name} ended at once; see {log}")
        entry = Registration(
            request.name, self._job, request.role, request.host, process.pid, began, round(time.time(), 3),
            self._apply_limits(request, process.pid),
        )  # fmt: skip
        self._registry.put(entry)
        with suppress(BrokenPipeError), process.stdin as gate:
            gate.write(b"go\n")
        return entry, process

    def _apply_limits(self, request: NodeRequest, pid: int) -> tuple[str, ...]:
        """Limit the process; returns its control groups. Says once per role what nobody limits."""
        groups, unlimited = limits.limit(self._job, request.name, request.resources, pid, own=self._own_groups)
        fresh = [resource for resource in unlimited if (request.role, resource) not in self._unlimited]
        self._unlimited.update((request.role, resource) for resource in fresh)
        if fresh:
            self._say(
                f"{request.role} nodes are not limited in {', '.join(fresh)}: this process cannot do so on this machine"
            )
        if request.extra:
            limits.prefer_to_kill(pid)
        return tuple(map(str, groups))

    def _watch(self, entry: Registration) -> None:
        if entry.uid not in self._watches:
            self._watches[entry.uid] = asyncio.create_task(self._wait_until_gone(entry))

    async def _wait_until_gone(self, entry: Registration) -> None:
        await _wait_for_death(entry)
        child = self._children.pop(entry.uid, None)
        code = child.wait() if child else None
        was_killed = code in (None, -signal.SIGKILL)
        code = OOM_KILLED if was_killed and was_oom_killed(map(Path, entry.groups)) else code
        await self._clean(entry)
        self._watches.pop(entry.uid, None)
        self._gone.put_nowait(NodeEnd(entry.name, entry.uid, code, _reason(code)))

    async def _clean(self, entry: Registration) -> None:
        try:
            await asyncio.to_thread(_clean, entry, self._shared_memory)
        except OSError as error:  # Its end must be reported all the same.
            self._say(f"node {entry.name} has ended, but some of what it left cannot be removed: {error}")
            if processes.is_shortage(error):
                return  # It stays registered: the next look at the nodes tries again.
        if any(Path(group).exists() for group in entry.groups):
            return  # As above: something of it still runs there, or is being buried.
        try:
            self._registry.remove(entry)
        except OSError as error:
            if not processes.is_shortage(error):
                raise


def _bind(pid: int, cpus: Set[int]) -> None:
    """Have the process, and what it starts, run on these CPUs only, as far as it may; on all if there are none."""
    with suppress(ProcessLookupError):
        if allowed := cpus & os.sched_getaffinity(pid):
            os.sched_setaffinity(pid, allowed)


def end_nodes(run_dir: Path) -> list[str]:
    """End every registered node of a run, with all it started and held; returns the names of those that were alive."""
    removed_names: list[str] = []
    for registry in registries_of(run_dir):
        for entry in list(registry.all()):
            if _kill(entry, _DEATH_S):
                removed_names.append(entry.name)
            _clean(entry)
            registry.remove(entry)
    return removed_names


def _clean(entry: Registration, shared_memory: Path = debris.SHARED_MEMORY) -> None:
    debris.remove_debris(entry.job, entry.name, shared_memory)
    limits.remove_groups(map(Path, entry.groups))


def _reason(code: int | None) -> str:
    if code is None:
        return "its process ended"
    if code == OOM_KILLED:
        return "its agent was killed: the node ran out of memory"
    if code < 0:
        return f"its agent was ended by {signal.Signals(-code).name}"
    return f"its agent ended with exit code {code}"


def _open_pidfd(entry: Registration) -> int | None:
    """A pidfd of exactly this process, or None if it is gone."""
    try:
        pidfd = os.pidfd_open(entry.pid)
    except ProcessLookupError:
        return None
    if entry.is_alive():
        return pidfd
    os.close(pidfd)
    return None


def _kill(entry: Registration, wait_s: float = 0.0) -> bool:
    """SIGKILL the agent and wait up to `wait_s` for its death; False if it was gone. Never hits a reused pid."""
    pidfd = _open_pidfd(entry)
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(wait_s * 1000)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


async def _wait_for_death(entry: Registration) -> None:
    """Wait until the process has ended."""
    while True:
        try:
            pidfd = _open_pidfd(entry)
            break
        except OSError as error:
            if not processes.is_shortage(error):
                raise
        await asyncio.sleep(_SHORT_S)  # The end of an unwatched process would never be reported.
    if pidfd is None:
        return
    try:
        await processes.wait_for_end(pidfd)
    finally:
        os.close(pidfd)
