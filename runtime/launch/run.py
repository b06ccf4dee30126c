"""One node of a launched job: find or host the master, be the node's agent, end with torchrun's exit code."""

import asyncio
import os
import random
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from everstep.runtime.agent.agent import Agent
from everstep.runtime.agent.checked_start import run_checked
from everstep.runtime.agent.dependencies import Dependencies, Ending
from everstep.runtime.agent.environment import own_device
from everstep.runtime.agent.logs import LaunchLogs
from everstep.runtime.agent.master_watch import NextMaster
from everstep.runtime.agent.output import Outputs
from everstep.runtime.agent.ports import free_port_pair
from everstep.runtime.agent.settings import Settings
from everstep.runtime.checkpoint.node.core.options import KeeperOptions
from everstep.runtime.checkpoint.node.keeper import Keeper
from everstep.runtime.checkpoint.stored.reports import leave_report
from everstep.runtime.diagnosis.admission import TIMEOUT_S, Admission, node_check_port
from everstep.runtime.diagnosis.admission_client import AdmissionClient
from everstep.runtime.diagnosis.errors import NoQuorumError
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.job.reasons import JobResult, Reason
from everstep.runtime.journal.journal import find_master
from everstep.runtime.launch.events import EventLog, LaunchMetadata, logger_of
from everstep.runtime.launch.failure import copy_error_file, failure_lines
from everstep.runtime.launch.job import Launch, job_of
from everstep.runtime.launch.local_state import LocalState, remove_store
from everstep.runtime.launch.log_layout import SpecifiedLogs, load
from everstep.runtime.launch.master_main import MasterConfig
from everstep.runtime.launch.master_process import Master
from everstep.runtime.launch.node_identity import NodeIdentity, identify_node, is_endpoint_free
from everstep.runtime.launch.probe import Answer, probe_endpoint
from everstep.runtime.protocol.holdings import Holding, Refusal
from everstep.runtime.protocol.messages import Evidence
from everstep.runtime.system.own_folder import hold_process_folder, remove_abandoned_folders

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsSpecs

_HOST_ENDS_S = 30.0
_TAKE_OVER_S = 15.0
"""Seconds (up to twice as long, at random) without a master's answer until a node whose workers go on starts the next
master."""
_CHECK_EVERY_S = 1.0
_PROBE_AFTER_S = 1.5
"""Nodes are started in any order: a master that starts this much later is normal."""
NOTICE_S = 20.0
"""Seconds from a signal until the node exits, if other nodes are there to take over its state."""
_GRACEFUL = (Reason.SCALED.value, Reason.PREEMPTED.value)


def launch(options: Launch, environment: Mapping[str, str]) -> int:
    """Run this node to its end; returns the exit code. Raises ValueError, StoreError with one line for bad input."""
    chance, scratch = random.Random(), LocalState(hold_process_folder())
    scratch.sweep()
    remove_abandoned_folders()
    _make_log_folder(options.logs.folder)
    if options.virtual_local_rank:
        own_device(environment, options.slots - 1)
    layout = load(options.logs_specs, options.logs) if options.logs_specs else None
    events = EventLog(
        logger_of(options.events),
        LaunchMetadata(options.run_id, options.role_name, options.backend, options.entry_point),
    )
    place = identify_node(options, environment, scratch, chance)
    os.environ.update(EVERSTEP_JOB=place.job, EVERSTEP_NODE=place.node)  # Its processes are found by these variables.
    entry = scratch.register(place.job, place.node, options.role)
    try:
        return asyncio.run(_Node(options, place, chance, environment, layout, events).run())
    finally:
        scratch.unregister(entry)


def say(text: str) -> None:
    """Print to whoever started this node."""
    for line in text.splitlines():
        sys.stderr.write(f"everstep: {line}\n")  # One write, even if unbuffered: workers write there, too.


def note(text: str) -> None:
    """Print what happens normally; only with torch's LOGLEVEL."""
    if os.environ.get("LOGLEVEL", "").upper() in ("INFO", "DEBUG"):
        say(text)


def _make_log_folder(folder: str) -> None:
    if folder and folder != os.devnull:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--log-dir {folder}: {error.strerror}; choose a folder that can be written") from None


class _Node:
    """This node's agent and, if the node hosts it, the master."""

    def __init__(
        self,
        options: Launch,
        place: NodeIdentity,
        chance: random.Random,
        environment: Mapping[str, str],
        layout: "LogsSpecs | None",
        events: EventLog,
    ) -> None:
        """`layout`: a user's class that lays out the logs; None: the default layout."""
        self._options = options
        self._identity = place
        self._chance = chance
        self._environment = environment
        self._master: Master | None = None
        self._hosting: asyncio.Task[int] | None = None
        self._layout = layout
        self._events = events
        dependencies = Dependencies(
            credentials=place.credentials,
            make_keeper=self._make_keeper,
            find_master=self._find_master,
            make_outputs=self._make_outputs,
            keep_log=self._keep_log,
            leave_report=partial(leave_report, place.store),
            say=say,
            note=note,
            on_seat=self._events.record_seat,
            on_start=self._events.record_start,
            next_master=NextMaster(self._host_next_master, _TAKE_OVER_S * chance.uniform(1, 2))
            if options.store and options.endpoint
            else None,
        )
        self._agent = Agent(self._settings(), dependencies, chance)

    async def run(self) -> int:
        """Run until this node is done; returns the exit code."""
        options, place = self._options, self._identity
        loop = asyncio.get_running_loop()
        for signum in options.signals:
            loop.add_signal_handler(signum, self._agent.leave, signum)
        if options.sets_threads:
            say(f"OMP_NUM_THREADS=1 for each of the {options.slots} workers, as torchrun sets it; set it to have more")
        acting = asyncio.create_task(self._run_agent())
        watching = asyncio.create_task(self._watch_masters())
        try:
            await asyncio.wait([acting, watching], return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()  # Raises what prevents the start.
            return await self._finish(await acting)
        except Exception:
            if self._master is not None and not self._agent.client.met:  # Nobody else would end it.
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
        """Check the node if asked to, then run the agent."""
        options, place = self._options, self._identity
        if not options.check.is_wanted:
            return await self._agent.run()
        client = AdmissionClient(
            place.node,
            socket.gethostname(),
            place.address,
            place.credentials,
            self._check_address,
            options.rendezvous.connect_s,
            options.check.box,
        )
        try:
            return await run_checked(self._agent, client, ExitCode.NO_QUORUM, say)
        except NoQuorumError as error:
            if self._master is not None:
                self._master.stop()  # There is no job.
            return Ending(ExitCode.NO_QUORUM, str(error))

    async def _check_address(self) -> tuple[str, int]:
        host, port = self._agent.client.address
        return host, node_check_port(port)

    async def _watch_masters(self) -> None:
        """Host the first master if that is this node's task. Runs until cancelled."""
        place = self._identity
        if place.hosts_master:
            await self._host_master(place.host, place.port)
            assert self._master is not None, "it was started"
            if self._master.refused:
                await self._check_another_hosts(self._master.refused)
        elif self._options.endpoint:
            await self._describe_missing_master()
        await asyncio.Event().wait()

    async def _describe_missing_master(self) -> None:
        """Until a master answers, say once for each kind of listener what is at its address instead."""
        place, answers = self._identity, set[Answer]()
        await asyncio.sleep(_PROBE_AFTER_S)
        while not self._agent.client.met:
            answer = await asyncio.to_thread(probe_endpoint, place.host, place.port, place.credentials, place.job)
            if answer.answer not in (Answer.NOBODY, Answer.SILENT, Answer.OTHER):
                return  # The agent says what is wrong with a master.
            if answer.answer not in answers:
                is_free = answer.answer is Answer.NOBODY
                what = "nothing listens there yet" if is_free else f"the listener there {answer.seen}"
                limit_s = self._options.rendezvous.connect_s
                say(f"no master of this job at {place.host}:{place.port}: {what}; this node tries for {limit_s:g} s")
            answers.add(answer.answer)
            await asyncio.sleep(_CHECK_EVERY_S)

    async def _host_master(self, host: str, port: int) -> None:
        """Run a master in a process of its own, until it ends."""
        self._master = Master(self._master_config(host, port), say)
        self._hosting = asyncio.create_task(self._master.run())
        await asyncio.shield(self._hosting)

    async def _host_next_master(self) -> None:
        """Any number of nodes may start a master: the journal lets only one decide. One that this node started before
        is started again by itself."""
        if self._hosting is None or self._hosting.done():
            say(f"no master has answered for {self._agent.client.silent_s:.0f} s: this node starts the next one")
            await self._host_master(self._identity.address, free_port_pair(self._chance))

    async def _check_another_hosts(self, refusal: str) -> None:
        """Raise ValueError unless another node's master took the address from ours at the same moment."""
        place = self._identity
        if await asyncio.to_thread(is_endpoint_free, place.host, place.port, place.credentials, place.job):
            raise ValueError(refusal)

    async def _finish(self, ending: Ending) -> int:
        """The agent is done: let the master end too, or leave it to the other nodes."""
        if self._master is not None and self._hosting is not None and not self._hosting.done():
            alone = self._options.nodes == 1
            if alone:
                self._master.stop()
            if not alone and ending.job is not None:
                await asyncio.wait([self._hosting], timeout=_HOST_ENDS_S)
            if not self._master.stopped and not self._hosting.done():
                say(f"the master continues for the other nodes, as process {self._master.pid}")
        return self._exit_code(ending)

    def _exit_code(self, ending: Ending) -> int:
        agent, script = self._agent, self._options.command[-1 if len(self._options.command) == 1 else 0]
        script = next((word for word in self._options.command if not word.startswith("-")), script)
        first_rank = agent.status.seat.first_rank if agent.status.seat else 0
        job = ending.job
        well = job is not None and job.exit_code == 0 and ending.code == 0
        self._events.record_end([] if well else agent.status.failures, not well, "" if job else ending.reason)
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
        options, place = self._options, self._identity
        spec, admission = job_of(options, place.job), None
        if options.check.is_wanted:
            window_s, timeout_s = spec.patience.join_window_s, spec.patience.join_timeout_s
            admission = Admission(
                options.nodes, options.min_nodes, window_s, timeout_s, options.check.exclude_straggler
            )
            spec = replace(spec, patience=replace(spec.patience, join_timeout_s=timeout_s + TIMEOUT_S))
        return MasterConfig(
            spec=spec,
            store=place.store.uri,
            token=place.credentials.token,
            tls=place.credentials.tls,
            host=host,
            port=port,
            parent=os.getpid() if options.endpoint is None else 0,
            admission=admission,
            remove=str(place.private_store or ""),
        )

    def _settings(self) -> Settings:
        options, place = self._options, self._identity
        host = f"[{place.host}]" if ":" in place.host else place.host
        return Settings(
            job=place.job,
            token=place.credentials.token,
            master=f"{place.credentials.scheme}://{host}:{place.port}",
            store=place.store.uri,
            node=place.node,
            role=options.role,
            host=socket.gethostname(),
            slots=options.slots,
            command=options.command,
            threads=options.threads,
            preload=options.preload,
            spares=options.spares,
            plain=options.plain,
            python=self._environment.get("PYTHON_EXEC") or sys.executable,
            max_restarts=options.max_restarts,
            connect_s=options.rendezvous.connect_s,
            pend_s=options.rendezvous.pend_timeout_s,
            notice_s=0.0 if options.endpoint is None else min(NOTICE_S, options.shutdown_s),
            grace_s=options.shutdown_s,
            address=place.address,
            ip="" if options.endpoint is None else place.address,
            index=options.index,
            run_id=options.run_id,
            role_name=options.role_name,
            meet=options.workers_endpoint,
            virtual_local_rank=options.virtual_local_rank,
            cpus=options.cpus,
            variables=options.environment,
            asks_end=True,
            any_script=True,
            persists=self._persists,
        )

    @property
    def _persists(self) -> bool:
        """The store outlives this node, or there is no other node."""
        return bool(self._options.store) or self._options.endpoint is None

    def _make_keeper(
        self,
        on_persisted: Callable[[Holding], None],
        on_unrestored: Callable[[tuple[Refusal, ...]], None],
        on_evidence: Callable[[Evidence], None],
    ) -> Keeper:
        identity, launch = self._identity, self._options
        options = KeeperOptions(
            job=identity.job,
            node=identity.node,
            persist_interval=launch.saving.persist_interval,
            overhead=launch.saving.overhead,
            workers=launch.slots,
            persists=self._persists,
        )
        credentials = identity.credentials
        return Keeper(options, identity.store, credentials, on_persisted, on_unrestored, on_evidence=on_evidence)

    def _make_outputs(self, folder: Path) -> Outputs:
        options = self._options
        if self._layout is not None:
            return SpecifiedLogs(self._layout, options.logs, options.role_name)
        return LaunchLogs(options.logs, options.role_name, folder)

    def _find_master(self) -> tuple[int, str] | None:
        """A store that all nodes read tells where the next master is; without one it is where the first one was."""
        return find_master(self._identity.store, self._identity.job) if self._options.store else None

    def _keep_log(self, name: str, data: bytes) -> None:
        if self._options.store:
            self._identity.store.put(f"jobs/{self._identity.job}/logs/{self._identity.node}/{name}", data)
