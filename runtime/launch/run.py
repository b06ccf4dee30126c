"""One node of a launched job: find or host the master, be the node's agent, end with torchrun's exit code."""

import asyncio
import os
import random
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from everstep.runtime.agent.agent import Agent
from everstep.runtime.agent.checked_start import run_checked
from everstep.runtime.agent.dependencies import Dependencies, Ending
from everstep.runtime.agent.environment import own_device
from everstep.runtime.agent.logs import LaunchLogs
from everstep.runtime.agent.output import Outputs
from everstep.runtime.agent.ports import free_port_pair
from everstep.runtime.agent.settings import Settings
from everstep.runtime.checkpoint.node.keeper import Keeper
from everstep.runtime.diagnosis.admission import TIMEOUT_S, Admission, node_check_port
from everstep.runtime.diagnosis.admission_client import AdmissionClient
from everstep.runtime.diagnosis.errors import NoQuorumError
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.job.records import JobResult, Reason
from everstep.runtime.journal.journal import find_master
from everstep.runtime.launch.events import EventLog, LaunchMetadata, logger_of
from everstep.runtime.launch.failure import copy_error_file, failure_lines
from everstep.runtime.launch.job import job_of
from everstep.runtime.launch.local_state import LocalState, remove_store
from everstep.runtime.launch.log_layout import SpecifiedLogs, load
from everstep.runtime.launch.master_main import MasterConfig
from everstep.runtime.launch.master_process import Master
from everstep.runtime.launch.node_identity import NodeIdentity, identify_node, is_endpoint_free
from everstep.runtime.launch.options import Launch
from everstep.runtime.protocol.messages import Holding, Refusal
from everstep.runtime.system.own_folder import own_folder

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsSpecs

_HOST_ENDS_S = 30.0
_TAKE_OVER_S = 15.0
"""So long (up to twice, by chance) after the last answer of a master a node starts the next one."""
_CHECK_EVERY_S = 1.0
NOTICE_S = 20.0
"""From a signal until the node is gone, where other nodes are there to take its state over."""
_GRACEFUL = (Reason.SCALED.value, Reason.PREEMPTED.value)


def launch(told: Launch, environment: Mapping[str, str]) -> int:
    """Run this node to its end; the exit code. Raises ValueError, StoreError with one line for bad input."""
    chance, scratch = random.Random(), LocalState(own_folder())
    scratch.sweep()
    _make_log_folder(told.logs.folder)
    if told.virtual_local_rank:
        own_device(environment, told.slots - 1)
    layout = load(told.logs_specs, told.logs) if told.logs_specs else None
    events = EventLog(
        logger_of(told.events), LaunchMetadata(told.run_id, told.role_name, told.backend, told.entry_point)
    )
    place = identify_node(told, environment, scratch, chance)
    os.environ.update(EVERSTEP_JOB=place.job, EVERSTEP_NODE=place.node)  # By these its processes are found.
    entry = scratch.register(place.job, place.node, told.role)
    try:
        return asyncio.run(_Node(told, place, chance, environment, layout, events).run())
    finally:
        scratch.unregister(entry)


def say(text: str) -> None:
    """For whoever started this node."""
    for line in text.splitlines():
        sys.stderr.write(f"everstep: {line}\n")  # One write, also unbuffered: workers write there too.


def note(text: str) -> None:
    """The usual course of things: torch's LOGLEVEL shows it."""
    if os.environ.get("LOGLEVEL", "").upper() in ("INFO", "DEBUG"):
        say(text)


def _make_log_folder(folder: str) -> None:
    if folder and folder != os.devnull:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--log-dir {folder}: {error.strerror}; choose a folder that can be written") from None


class _Node:
    """The agent of this node, beside it the master where this node hosts it."""

    def __init__(
        self,
        told: Launch,
        place: NodeIdentity,
        chance: random.Random,
        environment: Mapping[str, str],
        layout: "LogsSpecs | None",
        events: EventLog,
    ) -> None:
        """`layout`: where the logs go, by a class of the user's; None: as by default."""
        self._told = told
        self._place = place
        self._chance = chance
        self._environment = environment
        self._master: Master | None = None
        self._hosting: asyncio.Task[int] | None = None
        self._layout = layout
        self._tells = events
        around = Dependencies(
            credentials=place.credentials,
            make_keeper=self._make_keeper,
            find_master=self._find_master,
            make_outputs=self._make_outputs,
            keep_log=self._keep_log,
            say=say,
            note=note,
            on_seat=self._tells.record_seat,
            on_start=self._tells.record_start,
        )
        self._agent = Agent(self._settings(), around, chance)

    async def run(self) -> int:
        """Until this node is done; the exit code."""
        told, place = self._told, self._place
        loop = asyncio.get_running_loop()
        for signum in told.signals:
            loop.add_signal_handler(signum, self._agent.leave, signum)
        if told.sets_threads:
            say(f"OMP_NUM_THREADS=1 for each of the {told.slots} workers, as torchrun sets it; set it to have more")
        acting = asyncio.create_task(self._run_agent())
        watching = asyncio.create_task(self._watch_masters())
        try:
            await asyncio.wait([acting, watching], return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()  # Raises what forbids to begin.
            return await self._finish(await acting)
        except ValueError:
            if self._master is not None:
                self._master.stop()
            raise
        finally:
            for task in (watching, acting):
                task.cancel()
            await asyncio.gather(watching, acting, return_exceptions=True)
            if self._hosting is not None and self._master is not None and self._master.stopped:
                await asyncio.wait([self._hosting], timeout=_HOST_ENDS_S)
            if place.private_store is not None and not (self._hosting and not self._hosting.done()):
                remove_store(place.private_store)

    async def _run_agent(self) -> Ending:
        """Be checked, where that is asked for; then be the agent."""
        told, place = self._told, self._place
        if not told.check:
            return await self._agent.run()
        checked = AdmissionClient(
            place.node,
            socket.gethostname(),
            place.address,
            place.credentials,
            self._check_address,
            told.rendezvous.connect_s,
            told.box,
        )
        try:
            return await run_checked(self._agent, checked, ExitCode.NO_QUORUM)
        except NoQuorumError as error:
            if self._master is not None:
                self._master.stop()  # There is no job.
            return Ending(ExitCode.NO_QUORUM, str(error))

    async def _check_address(self) -> tuple[str, int]:
        host, port = self._agent.client.address
        return host, node_check_port(port)

    async def _watch_masters(self) -> None:
        """Host the first master where that is ours to do; start the next where a shared store lets us, until cancelled.

        Any number of nodes may start one: the journal lets a single master decide.
        """
        place = self._place
        if place.hosts_master:
            await self._host_master(place.host, place.port)
            assert self._master is not None, "it was started"
            if self._master.refused:
                await self._check_another_hosts(self._master.refused)
        limit_s = _TAKE_OVER_S * self._chance.uniform(1, 2)
        while self._told.store and self._told.endpoint:
            await asyncio.sleep(_CHECK_EVERY_S)
            if self._agent.client.silent_s > limit_s:
                say(f"no master has answered for {self._agent.client.silent_s:.0f} s: this node starts the next one")
                await self._host_master(place.address, free_port_pair(self._chance))
        await asyncio.Event().wait()

    async def _host_master(self, host: str, port: int) -> None:
        """Have a master in a process of its own, until it ends."""
        self._master = Master(self._master_config(host, port), say)
        self._hosting = asyncio.create_task(self._master.run())
        await asyncio.shield(self._hosting)

    async def _check_another_hosts(self, refused: str) -> None:
        """Our master could not listen: fine when a node that came at the same moment was first. Raises ValueError."""
        place = self._place
        if await asyncio.to_thread(is_endpoint_free, place.host, place.port, place.credentials, place.job):
            raise ValueError(refused)

    async def _finish(self, ending: Ending) -> int:
        """The agent is done: let the master end too, or leave it to the others."""
        if self._master is not None and self._hosting is not None and not self._hosting.done():
            alone = self._told.nodes == 1
            if alone:
                self._master.stop()
            if not alone and ending.job is not None:
                await asyncio.wait([self._hosting], timeout=_HOST_ENDS_S)
            if not self._master.stopped and not self._hosting.done():
                say(f"the master goes on for the other nodes, as process {self._master.pid}")
        return self._exit_code(ending)

    def _exit_code(self, ending: Ending) -> int:
        agent, script = self._agent, self._told.command[-1 if len(self._told.command) == 1 else 0]
        script = next((word for word in self._told.command if not word.startswith("-")), script)
        first_rank = agent.status.seat.first_rank if agent.status.seat else 0
        job = ending.job
        well = job is not None and job.exit_code == 0 and ending.code == 0
        self._tells.record_end([] if well else agent.status.failures, not well, "" if job else ending.reason)
        if well:
            return 0
        for line in failure_lines(script, agent.status.failures, first_rank):
            say(line)
        copy_error_file(agent.status.failures, self._environment)
        if ending.code >= 128:
            return ending.code
        if job is not None:
            say(f"the job {job.result}: {job.reason}")
            if job.error and not agent.status.failures:
                say(job.error)
            return 1 if job.result == JobResult.FAILED else job.exit_code
        say(f"this node is done: {ending.reason}")
        return ExitCode.TRY_AGAIN if ending.by_master and ending.reason not in _GRACEFUL else ending.code

    def _master_config(self, host: str, port: int) -> MasterConfig:
        told, place = self._told, self._place
        spec, admission = job_of(told, place.job), None
        if told.check:
            window_s, timeout_s = spec.patience.join_window_s, spec.patience.join_timeout_s
            admission = Admission(told.nodes, told.min_nodes, window_s, timeout_s, told.exclude_straggler)
            spec = replace(spec, patience=replace(spec.patience, join_timeout_s=timeout_s + TIMEOUT_S))
        return MasterConfig(
            spec=spec,
            store=place.store.uri,
            token=place.credentials.token,
            tls=place.credentials.tls,
            host=host,
            port=port,
            parent=os.getpid() if told.endpoint is None else 0,
            admission=admission,
            remove=str(place.private_store or ""),
        )

    def _settings(self) -> Settings:
        told, place = self._told, self._place
        host = f"[{place.host}]" if ":" in place.host else place.host
        return Settings(
            job=place.job,
            token=place.credentials.token,
            master=f"{place.credentials.scheme}://{host}:{place.port}",
            store=place.store.uri,
            node=place.node,
            role=told.role,
            host=socket.gethostname(),
            slots=told.slots,
            command=told.command,
            threads=told.threads,
            preload=told.preload,
            plain=told.plain,
            python=self._environment.get("PYTHON_EXEC") or sys.executable,
            max_restarts=told.max_restarts,
            connect_s=told.rendezvous.connect_s,
            pend_s=told.rendezvous.pend_timeout_s,
            notice_s=0.0 if told.endpoint is None else min(NOTICE_S, told.shutdown_s),
            grace_s=told.shutdown_s,
            address=place.address,
            ip="" if told.endpoint is None else place.address,
            index=told.index,
            run_id=told.run_id,
            role_name=told.role_name,
            meet=told.workers_endpoint,
            virtual_local_rank=told.virtual_local_rank,
            cpus=told.cpus,
            variables=told.environment,
            asks_end=True,
            any_script=True,
            persists=self._persists,
        )

    @property
    def _persists(self) -> bool:
        """The store outlives this node, or there is no other one."""
        return bool(self._told.store) or self._told.endpoint is None

    def _make_keeper(
        self, on_persisted: Callable[[Holding], None], on_unrestored: Callable[[tuple[Refusal, ...]], None]
    ) -> Keeper:
        place = self._place
        return Keeper(
            job=place.job,
            node=place.node,
            store=place.store,
            credentials=place.credentials,
            persist_interval=self._told.persist_interval,
            overhead=self._told.checkpoint_overhead,
            on_persisted=on_persisted,
            on_unrestored=on_unrestored,
            workers=self._told.slots,
            persists=self._persists,
        )

    def _make_outputs(self, folder: Path) -> Outputs:
        told = self._told
        if self._layout is not None:
            return SpecifiedLogs(self._layout, told.logs, told.role_name)
        return LaunchLogs(told.logs, told.role_name, folder)

    def _find_master(self) -> tuple[int, str] | None:
        """Only a store that all nodes read tells where the next master is; else it is where the first one was."""
        return find_master(self._place.store, self._place.job) if self._told.store else None

    def _keep_log(self, name: str, data: bytes) -> None:
        if self._told.store:
            self._place.store.put(f"jobs/{self._place.job}/logs/{self._place.node}/{name}", data)
