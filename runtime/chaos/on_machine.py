"""Faults of nodes that are processes of this machine. The story begins in `MachineInjector.inject`."""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from everstep.runtime.chaos import clock, full_disk, groups, load, packet_loss, slow_disk, store_outage, victims
from everstep.runtime.chaos.injector import Fault, FiredFault, Kind, NotFiredError, NotPossibleError
from everstep.runtime.chaos.progress import LOOK_S, Progress, mention_of, oom_fired, role_to_resize
from everstep.runtime.job.records import FaultJudged, NodeLeaving, NodeLost
from everstep.runtime.platform.registry import Registration, registry_of
from everstep.runtime.system.processes import find_processes

TRAIN_STEP = "everstep.steps.train"
SEEN_S = 60.0
"""A fault may take this long to appear in the journal."""
STOP_S = 5.0
"""A process that is told to stop does so when it next runs."""
_LOOK_S = 0.05
"""Between two looks at what measures: it is there for a moment."""
PROBE_BYTES = 2 << 20
"""Written to see how slow a disk is."""
_ONLY_PODS = "it needs machines of a cluster, and here nodes are processes; use --target argo"
_NO_GROUP = (
    "its nodes have no memory limit: the job must set one (resources: {memory: 2Gi}), and this process must be allowed "
    "to make control groups (memory)"
)


class MachineInjector:
    """The nodes of one job in a run's folder."""

    def __init__(self, run_dir: Path, step: str, progress: Progress, chance: random.Random) -> None:
        """`step`: the name of the train step's task, empty if the run has only one; `chance` chooses the node."""
        self._run_dir = run_dir.absolute()
        self._step = step
        self._progress = progress
        self._chance = chance
        self._registry = registry_of(run_dir, progress.job)
        self._groups: dict[str, Path] = {}
        """Control groups of nodes by their uid, from `prepare`."""
        self._homes: dict[int, Path] = {}
        """In which groups the nodes' processes were before."""

    def refusal(self, kind: Kind) -> str:
        uri = self._progress.store.uri
        match kind:
            case Kind.EVICT | Kind.CONTAINER | Kind.CORDON | Kind.TAINT:
                return _ONLY_PODS
            case Kind.NETWORK:
                return packet_loss.refusal()
            case Kind.CLOCK:
                return clock.refusal()
            case Kind.STORE:
                return store_outage.refusal(uri)
            case Kind.DISK:
                return store_outage.refusal(uri) or full_disk.refusal(Path(uri))
            case Kind.SLOW_DISK:
                return store_outage.refusal(uri) or slow_disk.refusal(Path(uri))
            case _:
                return ""

    async def prepare(self, kind: Kind) -> None:
        """For NETWORK, each node enters a control group of its own before its workers make a socket; see `release`."""
        groups.remove_abandoned()
        while kind is Kind.NETWORK:
            for entry in self._nodes():
                if entry.uid not in self._groups:
                    self._groups[entry.uid] = group = groups.make_group(entry.uid)
                    groups.enter_all(group, partial(victims.agent_and_below, entry.pid), self._homes)
            await asyncio.sleep(0.01)

    def release(self) -> None:
        """Put the nodes back into the groups from which `prepare` took them."""
        for group in self._groups.values():
            groups.remove(group, self._homes)

    async def inject(self, fault: Fault) -> FiredFault:
        if why := self.refusal(fault.kind):
            raise NotPossibleError(why)
        faults: Mapping[Kind, Callable[[Fault], Awaitable[FiredFault]]] = {
            Kind.CRASH: self._crash,
            Kind.FORK_SERVER: self._kill_fork_server,
            Kind.NODE: self._kill_node,
            Kind.PREEMPT: self._preempt,
            Kind.FREEZE: self._freeze,
            Kind.SLOW: self._slow_down,
            Kind.FAULTY: self._fail_check,
            Kind.NETWORK: self._cut_off,
            Kind.OOM: self._run_out_of_memory,
            Kind.MEMORY: self._fill_memory,
            Kind.CPU: self._load_cpu,
            Kind.CLOCK: self._set_clock,
            Kind.SLOW_DISK: self._slow_disk,
            Kind.RESIZE: self._resize,
            Kind.MASTER: self._kill_master,
            Kind.STORE: self._lose_store,
            Kind.DISK: self._fill_disk,
            Kind.EVERYTHING: self._kill_everything,
        }
        try:
            return await faults[fault.kind](fault)
        except psutil.NoSuchProcess as error:
            raise NotFiredError(f"process {error.pid} ended before the fault could reach it") from None
        except PermissionError as error:
            raise NotPossibleError(f"this user may not do it: {error}") from None
        except OSError as error:
            raise NotFiredError(str(error)) from None

    def _nodes(self) -> list[Registration]:
        """The job's live nodes."""
        return [entry for entry in self._registry.all() if entry.is_alive()]

    async def _victim(self, fault: Fault) -> Registration:
        """The named node, or one that trains. Raises NotFiredError."""
        candidates: list[Registration] = []

        def find_live() -> bool:
            names = [fault.node] if fault.node else self._progress.training_nodes()
            candidates[:] = [entry for entry in self._nodes() if entry.name in names]
            return bool(candidates)

        await self._progress.wait(find_live, f"{fault.node or 'any node'} is alive and trains", SEEN_S)
        return self._chance.choice(sorted(candidates, key=lambda entry: entry.name))

    async def _workers(self, entry: Registration) -> list[psutil.Process]:
        """The node's training processes: its fork server's children. Raises NotFiredError."""
        workers: list[psutil.Process] = []

        def find_workers() -> bool:
            workers[:] = victims.workers_of(entry.pid)
            return bool(workers)

        await self._progress.wait(find_workers, f"{entry.name} has a training process", SEEN_S)
        return workers

    async def _crash(self, fault: Fault) -> FiredFault:
        entry = await self._victim(fault)
        worker = self._chance.choice(await self._workers(entry))
        return await victims.kill(fault.kind, entry.name, [worker])

    async def _kill_fork_server(self, fault: Fault) -> FiredFault:
        entry = await self._victim(fault)
        servers = victims.server_of(entry.pid)
        if not servers:
            raise NotPossibleError(f"{entry.name} has no fork server: its script is started as a plain process")
        return await victims.kill(fault.kind, entry.name, servers)

    async def _kill_node(self, fault: Fault) -> FiredFault:
        entry = await self._victim(fault)
        return await victims.kill(fault.kind, entry.name, [psutil.Process(entry.pid)])

    async def _kill_master(self, fault: Fault) -> FiredFault:
        return await victims.kill(fault.kind, "", self._train_step())

    async def _kill_everything(self, fault: Fault) -> FiredFault:
        agents = [psutil.Process(entry.pid) for entry in self._nodes()]
        below = [process for agent in agents for process in agent.children(recursive=True)]
        return await victims.kill(fault.kind, "", [*self._train_step(), *agents, *below])

    def _train_step(self) -> list[psutil.Process]:
        """The job's master. Raises NotFiredError."""
        marker, processes = f"EVERSTEP_RUN_DIR={self._run_dir}".encode(), []
        for pid in find_processes({marker}.issubset):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                line = process.cmdline()
                if TRAIN_STEP in line and f"--job={self._progress.job}" in line and Path(line[0]).name != "sh":
                    processes.append(process)
        if not processes:
            raise NotFiredError("the train step's process is not there")
        return processes

    async def _preempt(self, fault: Fault) -> FiredFault:
        entry, moment = await self._victim(fault), time.time()
        os.kill(entry.pid, signal.SIGTERM)
        record = await self._progress.wait_for_record(entry.name, moment, SEEN_S, NodeLeaving)
        return FiredFault(fault.kind, entry.name, moment, mention_of(record))

    async def _freeze(self, fault: Fault) -> FiredFault:
        entry = await self._victim(fault)
        with victims.alone(fault.kind, entry.uid):
            return await self._stop_and_continue(fault, entry)

    async def _stop_and_continue(self, fault: Fault, entry: Registration) -> FiredFault:
        processes, moment = victims.agent_and_below(entry.pid), time.time()
        try:
            for process in processes:
                process.suspend()
            deadline = time.monotonic() + STOP_S
            stopped_count = 0
            while stopped_count < len(processes) and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
                stopped_count = sum(map(victims.stands_still, processes))
            if not stopped_count:
                raise NotFiredError(f"SIGSTOP, but no process of {entry.name} stopped")
            await asyncio.sleep(fault.seconds)
        finally:
            victims.resume(processes)
        return FiredFault(
            fault.kind, entry.name, moment, f"{stopped_count} processes were stopped for {fault.seconds:g} s"
        )

    async def _slow_down(self, fault: Fault) -> FiredFault:
        entry = await self._victim(fault)
        workers, moment = await self._workers(entry), time.time()
        return FiredFault(fault.kind, entry.name, moment, await victims.slow_down(workers, fault))

    async def _set_clock(self, fault: Fault) -> FiredFault:
        entry = await self._victim(fault)
        moment = time.time()
        return FiredFault(fault.kind, entry.name, moment, await victims.set_clock(entry.pid, fault))

    async def _slow_disk(self, fault: Fault) -> FiredFault:
        entry = await self._victim(fault)
        folder, usual = Path(self._progress.store.uri), PROBE_BYTES / slow_disk.BYTES_PER_S
        without = await victims.seconds_to_write(folder, PROBE_BYTES)
        with (
            victims.alone(fault.kind, entry.uid),
            slow_disk.slow(folder, entry.uid, lambda: victims.agent_and_below(entry.pid)) as group,
        ):
            moment = time.time()
            seconds = await victims.seconds_to_write(folder, PROBE_BYTES, group)
            if seconds < usual / 2:
                raise NotFiredError(f"{PROBE_BYTES >> 20} MiB were written within {seconds:.2f} s")
            await asyncio.sleep(moment + fault.seconds - time.time())
        what = f"{PROBE_BYTES >> 20} MiB took {seconds:.1f} s to reach the disk, {without:.1f} s outside of the node"
        return FiredFault(fault.kind, entry.name, moment, f"{what}; for {fault.seconds:g} s")

    async def _fail_check(self, fault: Fault) -> FiredFault:
        check_victims: list[str] = [fault.node] if fault.node else []
        killed_count, moment = 0, 0.0

        def find_judgement() -> FaultJudged | NodeLost | None:
            types = (FaultJudged, NodeLost)
            return next((r for r in self._progress.records() if isinstance(r, types) and r.node in check_victims), None)

        deadline = time.time() + 10 * SEEN_S
        while not (record := find_judgement()):
            if time.time() > deadline or self._progress.has_ended():
                raise NotFiredError(f"{killed_count} measurements were killed, but no node was found faulty")
            for entry in self._nodes():
                check_victims = check_victims or [entry.name]
                if entry.name in check_victims and (count := victims.kill_measurements(entry.pid)):
                    killed_count, moment = killed_count + count, moment or time.time()
            await asyncio.sleep(_LOOK_S)
        if not killed_count:
            raise NotFiredError(f"{check_victims[0]} was lost before it was checked ({record.reason})")
        return FiredFault(
            fault.kind,
            check_victims[0],
            moment,
            f"{killed_count} measurements killed; {record.reason}: {record.detail}",
        )

    async def _cut_off(self, fault: Fault) -> FiredFault:
        entry = await self._victim(fault)
        group = self._groups.get(entry.uid)
        if group is None:
            raise NotPossibleError(
                f"{entry.name} had sockets before it was put into a control group; packets can only be dropped for "
                "nodes that were watched from their start, as pipelines/chaos_drill.py does it"
            )
        address = self._progress.state().address
        if not await victims.can_connect(group, address):
            raise NotFiredError(f"the master at {address} was already unreachable")
        with packet_loss.cut_off(group):
            moment = time.time()
            if await victims.can_connect(group, address):
                raise NotFiredError(f"{address} can still be reached")
            while time.time() < moment + fault.seconds and entry.is_alive():
                await asyncio.sleep(LOOK_S)
        elapsed_s = time.time() - moment
        return FiredFault(
            fault.kind, entry.name, moment, f"no connection to {address} from {entry.name} for {elapsed_s:.0f} s"
        )

    def _memory_group(self, entry: Registration) -> Path:
        """The node's control group, with a limit. Raises NotPossibleError."""
        for group in map(Path, entry.groups):
            with suppress(OSError):
                if load.memory_use(group)[1]:
                    return group
        raise NotPossibleError(_NO_GROUP)

    async def _run_out_of_memory(self, fault: Fault) -> FiredFault:
        entry = await self._victim(fault)
        group, moment = self._memory_group(entry), time.time()
        await victims.run_out_of_memory(group, await self._workers(entry))
        record = await self._progress.wait_for_record(entry.name, moment, SEEN_S, FaultJudged, NodeLost)
        return oom_fired(entry.name, moment, record)

    async def _fill_memory(self, fault: Fault) -> FiredFault:
        entry = await self._victim(fault)
        group, moment = self._memory_group(entry), time.time()
        return FiredFault(fault.kind, entry.name, moment, await victims.fill_memory(group, fault))

    async def _load_cpu(self, fault: Fault) -> FiredFault:
        moment = time.time()
        return FiredFault(fault.kind, "", moment, await victims.load_cores(fault))

    async def _resize(self, fault: Fault) -> FiredFault:
        """One node more for some iterations, then the size that the job had, whatever happened meanwhile."""
        with victims.alone(fault.kind, self._progress.job):
            return await self._resize_and_back(fault)

    async def _resize_and_back(self, fault: Fault) -> FiredFault:
        role = role_to_resize(self._progress.state().nodes.roles())
        before, moment = self._progress.size(role), time.time()
        try:
            await self._scale(role, before + 1)
        except NotFiredError:  # No master takes it now: nothing is to be taken back, unless its answer got lost.
            with suppress(NotFiredError):
                await self._scale(role, before)
            raise
        except asyncio.CancelledError:
            await self._scale_back(role, before)
            raise
        try:
            await self._progress.wait_for_members(role, before + 1, 2 * SEEN_S)
            newest = self._progress.iteration()
            await self._progress.wait(lambda: self._progress.iteration() > newest + 2, "they have trained", 2 * SEEN_S)
        finally:
            await self._scale_back(role, before)
        await self._progress.wait_for_members(role, before, 2 * SEEN_S)
        return FiredFault(fault.kind, "", moment, f"rounds of {before} -> {before + 1} -> {before} nodes")

    async def _scale_back(self, role: str, nodes: int) -> None:
        """Again and again while no master answers. Raises NotFiredError."""
        until = time.monotonic() + SEEN_S
        while True:
            try:
                return await self._scale(role, nodes)
            except NotFiredError:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(LOOK_S)

    async def _scale(self, role: str, nodes: int) -> None:
        """As a user asks for it. Raises NotFiredError."""
        name, runs = self._run_dir.name + (f"/{self._step}" if self._step else ""), str(self._run_dir.parent)
        words = ["-m", "everstep", "scale", name, "--role", role, "--nodes", str(nodes), "--runs", runs]
        scaling = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, error_output = await scaling.communicate()
        if scaling.returncode:
            raise NotFiredError(error_output.decode().strip())

    async def _lose_store(self, fault: Fault) -> FiredFault:
        path = Path(self._progress.store.uri) / "jobs" / self._progress.job
        with store_outage.out_of_reach(path) as why:
            moment = time.time()
            await asyncio.sleep(fault.seconds)
        return FiredFault(fault.kind, "", moment, f"{why} for {fault.seconds:g} s")

    async def _fill_disk(self, fault: Fault) -> FiredFault:
        folder, moment = Path(self._progress.store.uri), time.time()
        with full_disk.filled(folder) as filler:
            if full_disk.has_room(folder):
                raise NotFiredError(f"{filler.bytes_taken >> 20} MiB were taken, but {folder} has room left")
            while time.time() < moment + fault.seconds:
                filler.fill()
                await asyncio.sleep(LOOK_S)
        return FiredFault(
            fault.kind,
            "",
            moment,
            f"{filler.bytes_taken >> 20} MiB taken: {folder} had no room for {fault.seconds:g} s",
        )
