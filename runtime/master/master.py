"""Runs one master: claim the job, serve its agents, reconcile its nodes, end with an Outcome."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

import msgspec

from everstep.runtime.checkpoint.stored.keys import checkpoint_folder
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.job.events import Opened, ScaleRequested, StopRequested, Survey
from everstep.runtime.job.pod_template import variables_of
from everstep.runtime.job.replicas import DesiredNode
from everstep.runtime.job.spec import JobSpec, Placement
from everstep.runtime.job.spec_problems import problems
from everstep.runtime.job.state import State
from everstep.runtime.job.transaction import Refused
from everstep.runtime.journal import journal
from everstep.runtime.master.endpoints import Endpoints
from everstep.runtime.master.journaled_brain import JournaledBrain
from everstep.runtime.master.left_spec import leave_spec
from everstep.runtime.master.progress import Progress, Reporter
from everstep.runtime.master.reconcile import Reconciler
from everstep.runtime.master.retry import retry
from everstep.runtime.master.server import serving
from everstep.runtime.master.survey import survey_store
from everstep.runtime.master.telemetry import Telemetry
from everstep.runtime.net.tls import Credentials
from everstep.runtime.net.token import TOKEN_VARIABLE
from everstep.runtime.net.token_gate import MOST_STRANGERS, RESERVED_DESCRIPTORS, listen
from everstep.runtime.platform import NodeRequest, Platform
from everstep.runtime.platform.devices import first_worker
from everstep.runtime.protocol.messages import Heartbeat
from everstep.runtime.store import Store

T = TypeVar("T")
TERMINATED = 143
_log = logging.getLogger(__name__)


class Outcome(msgspec.Struct, frozen=True):
    """How the job, or this master's part in it, ended."""

    state: Literal["succeeded", "failed", "stopped", "no_quorum", "fenced"]
    """`stopped`: by `Control.stop`; the nodes were removed or left training as `Control.remove_nodes` said."""
    reason: str
    error: str
    """The first failing rank's traceback; empty if there is none."""
    checkpoint: str | None
    """Key prefix in the store of the newest committed checkpoint."""
    iterations: int
    exit_code: int
    """0 succeeded, 1 failed, 3 no quorum, 75 fenced (another master has the job), 143 stopped."""
    trains_on: bool = False
    """Stopped, but the nodes train on, and wait for the next master."""


class CannotListen(OSError):  # noqa: N818 (a name that reads well in `except`)
    """Cannot listen at the address, or cannot open a connection per node. One line: why, and how to fix it."""


@dataclass(frozen=True)
class AgentCommand:
    """How the platform starts an agent."""

    arguments: Sequence[str] = ()
    """They follow each node's `--node --role --host --slots`."""
    role_arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Instead of `arguments`, for the roles named here."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Besides EVERSTEP_JOB, _JOB_TOKEN, _MASTER, _STORE and _NODE."""


@dataclass(frozen=True)
class ListenAddress:
    """Where the master's server listens."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port."""
    listener: socket.socket | None = None
    """A socket that is already bound to `host`; it is closed at the end."""

    def open(self) -> socket.socket:
        """The listening socket. Raises CannotListen."""
        return self.listener or open_listener(self.host, self.port)


@dataclass(frozen=True)
class Control:
    """What the caller asks of a running master, and hears from it."""

    stop: asyncio.Event
    remove_nodes: Callable[[], bool] = lambda: True
    """Called once `stop` is set. True: the nodes end; False: they train on without a master."""
    sizes: AsyncIterator[ScaleRequested] | None = None
    """Yields whenever the job is scaled by other means than its HTTP API."""
    on_progress: Callable[[Progress], None] | None = None


async def run(
    spec: JobSpec,
    store: Store,
    platform: Platform,
    credentials: Credentials,
    agents: AgentCommand,
    control: Control,
    at: ListenAddress = ListenAddress(),
    *,
    stands_in: bool = False,
) -> Outcome:
    """Run the job to its end, or until `control.stop` is set.

    `stands_in`: only while the job's own master does not answer (see `stand_in`).
    A job that has succeeded returns at once; one that ended otherwise is reopened. A store that fails is tried again
    for minutes, unless it `stands_in`: others could, then. Raises ValueError for a spec that contradicts itself,
    CannotListen if host and port are not available or the job has more nodes than this process may open files,
    StoreError and journal.JournalError if the journal cannot be written or read.
    """
    if wrong := problems(spec):
        raise ValueError("; ".join(wrong))
    _allow_connections(spec)
    with _rare_garbage_collection(_max_nodes(spec)), at.open() as bound_socket:
        host = f"[{at.host}]" if ":" in at.host else at.host
        address = f"{host}:{bound_socket.getsockname()[1]}"
        try:
            own_journal, state, survey = await _take_over(spec, store, address, None if stands_in else control.stop)
        except journal.Fenced as error:
            return Outcome("fenced", str(error), "", None, 0, ExitCode.TRY_AGAIN)
        brain = JournaledBrain(spec, store, own_journal, state)
        environment = {**agents.environment, **_job_variables(brain, store, credentials, address)}
        reconciler = Reconciler(brain, platform, _request_factory(brain, agents, environment))
        telemetry = Telemetry(store, spec.job, state.epoch)
        reporter = Reporter(control.on_progress, state)
        brain.on_state.append(reporter.on_state)

        endpoints = Endpoints(brain, credentials, _telemetry_handler(brain, telemetry, reporter))
        async with serving(endpoints, bound_socket, nodes=_max_nodes(spec)):
            try:
                return await _run_parts(brain, survey, reconciler, telemetry, control)
            except journal.Fenced as error:
                return Outcome("fenced", str(error), "", None, brain.state.iteration, ExitCode.TRY_AGAIN)
            finally:
                await telemetry.flush()


async def _take_over(
    spec: JobSpec, store: Store, address: str, stop: asyncio.Event | None
) -> tuple[journal.Journal, State, Survey]:
    """Claim the job; its journal, state and checkpoints. `stop` ends the attempts at a store that fails; None: whoever
    stands in makes only one."""

    async def call(what: str, function: Callable[[], T]) -> T:
        return await (retry(what, function, stop) if stop else asyncio.to_thread(function))

    def claim() -> tuple[journal.Journal, State]:
        return journal.claim(store, spec.job, address, time.time(), stands_in=stop is None)

    own_journal, state = await call("the job's journal", claim)
    if spec.placement is Placement.PLATFORM:
        await call("the job's spec", partial(leave_spec, store, spec))
    # A reopened job tries sources again that it refused before.
    fresh = msgspec.structs.replace(state, refused=()) if state.ended else state
    return (
        own_journal,
        state,
        await call("the survey of the checkpoints", partial(survey_store, store, spec.job, fresh)),
    )


def _job_variables(brain: JournaledBrain, store: Store, credentials: Credentials, address: str) -> dict[str, str]:
    """The environment variables by which a node's agent finds its job."""
    return {
        "EVERSTEP_JOB": brain.spec.job,
        TOKEN_VARIABLE: credentials.token,
        "EVERSTEP_MASTER": f"{credentials.scheme}://{address}",
        "EVERSTEP_STORE": store.uri,
    }


def _telemetry_handler(brain: JournaledBrain, telemetry: Telemetry, reporter: Reporter) -> Callable[[Heartbeat], int]:
    """A function that keeps a heartbeat's telemetry and returns the number of the node's newest stored line."""

    def on_telemetry(beat: Heartbeat) -> int:
        telemetry.add(beat.node, beat.telemetry, brain.clock())
        if beat.telemetry:
            reporter.on_telemetry(beat)
        return telemetry.newest_stored(beat.node)

    return on_telemetry


def _max_nodes(spec: JobSpec) -> int:
    """The largest number of nodes that the job may have."""
    return sum(role.most for role in spec.roles.values())


def _allow_connections(spec: JobSpec) -> None:
    """Raise the limit of open files to two connections per node (a long poll and a report) if the hard limit allows.

    Raises CannotListen if the limit does not allow even one per node.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    nodes = _max_nodes(spec)
    useful, needed_files = 2 * nodes + MOST_STRANGERS + RESERVED_DESCRIPTORS, nodes + RESERVED_DESCRIPTORS
    most = useful if hard == resource.RLIM_INFINITY else min(hard, useful)
    if most < needed_files:
        raise CannotListen(
            f"{nodes} nodes need {nodes} connections + {RESERVED_DESCRIPTORS} = {needed_files} open files, "
            f"but this process may have {hard}; raise the limit (ulimit -Hn)"
        )
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextlib.contextmanager
def _rare_garbage_collection(nodes: int) -> Iterator[None]:
    """Collect cycles less often: with 10,000 connections, collections at Python's default of 700 new objects took half
    of the master's time, at 100,000 a tenth of it when all join again. A request leaves no cycles behind."""
    before = gc.get_threshold()
    gc.set_threshold(max(100_000, 100 * nodes), 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def open_listener(host: str, port: int) -> socket.socket:
    """A listening socket. Raises CannotListen."""
    try:
        return listen(host, port)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise CannotListen(f"cannot listen on {host}:{port}: {why}; choose another address or port") from None


def _request_factory(
    brain: JournaledBrain, agents: AgentCommand, environment: Mapping[str, str]
) -> Callable[[DesiredNode], NodeRequest]:
    """A function that makes the platform's request for a desired node."""

    def request(node: DesiredNode) -> NodeRequest:
        role = brain.spec.roles[node.role]
        own = ["--node", node.name, "--role", node.role, "--host", node.host, "--slots", str(role.slots)]
        counts = dict.fromkeys(("NODE_NUM", "WORKER_NUM"), str(role.nodes))
        variables = {**counts, **variables_of(role.template), **environment, "EVERSTEP_NODE": node.name}
        hosts_avoided = sorted({*brain.spec.avoid_hosts, *brain.state.avoided})
        arguments = [*own, *agents.role_arguments.get(node.role, agents.arguments)]
        return NodeRequest(
            node.name,
            node.role,
            node.host,
            variables,
            arguments,
            node.resources,
            node.priority,
            node.extra,
            hosts_avoided,
            node.not_on,
            brain.spec.host_order,
            (first_worker(brain.spec.roles, node.role, node.index), role.slots),
        )

    return request


async def _run_parts(
    brain: JournaledBrain,
    survey: Survey,
    reconciler: Reconciler,
    telemetry: Telemetry,
    control: Control,
) -> Outcome:
    """Run all tasks until the job has ended and its nodes are gone, or until `control.stop` is set."""
    main = asyncio.create_task(_run_to_the_end(brain, survey, reconciler, control))
    parts = (*brain.background_parts, reconciler.watch_nodes, telemetry.run)
    tasks = running_tasks = {main, *(asyncio.create_task(part()) for part in parts)}
    if control.sizes:
        tasks.add(asyncio.create_task(_apply_scaling(brain, control.sizes)))
    try:
        while not main.done():
            finished_tasks, running_tasks = await asyncio.wait(running_tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in finished_tasks:
                task.result()
        return main.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _apply_scaling(brain: JournaledBrain, sizes: AsyncIterator[ScaleRequested]) -> None:
    """Scale the job as `sizes` says; log what is refused."""
    async for request in sizes:
        try:
            brain.feed(request)
        except Refused as error:
            _log.warning("not scaled: %s", error)


async def _run_to_the_end(brain: JournaledBrain, survey: Survey, reconciler: Reconciler, control: Control) -> Outcome:
    end_event = asyncio.Event()
    brain.on_state.append(lambda state: end_event.set() if state.ended else end_event.clear())
    await reconciler.reconcile_once()  # Finds nodes that died while no master ran.
    brain.feed(Opened(survey))
    await brain.wait_until_durable()
    loop, debris = asyncio.create_task(reconciler.run()), asyncio.create_task(brain.delete_unneeded())
    try:
        if not brain.state.ended and await _wait_for_first(end_event, control.stop, failing=loop) is control.stop:
            if not control.remove_nodes():
                await brain.wait_until_durable()
                why, newest = "asked to stop; its nodes continue training", _newest_checkpoint(brain)
                return Outcome("stopped", why, "", newest, brain.state.iteration, TERMINATED, trains_on=True)
            brain.feed(StopRequested("told to stop"))
            await brain.wait_until_durable()
        await _wait_until_empty(brain, reconciler)
        return _outcome(brain)
    finally:
        loop.cancel()
        debris.cancel()
        await asyncio.gather(loop, debris, return_exceptions=True)


async def _wait_for_first(*events: asyncio.Event, failing: asyncio.Task[None]) -> asyncio.Event:
    """Wait for the first of these events and return it; raises what `failing` raises meanwhile."""
    tasks = {asyncio.create_task(event.wait()): event for event in events}
    try:
        finished_tasks, _ = await asyncio.wait([*tasks, failing], return_when=asyncio.FIRST_COMPLETED)
        if failing in finished_tasks:
            failing.result()
        return next(tasks[task] for task in tasks if task in finished_tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _wait_until_empty(brain: JournaledBrain, reconciler: Reconciler) -> None:
    """Wait until the nodes have left by themselves, or were deleted after their time was over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(brain.spec.patience.leave_s * 2 + 5):
            reconciler.empty.clear()
            brain.changed.set()
            await reconciler.empty.wait()


def _newest_checkpoint(brain: JournaledBrain) -> str | None:
    committed_places = [key for key, checkpoint in brain.state.checkpoints.items() if checkpoint.manifest]
    return checkpoint_folder(brain.spec.job, max(committed_places)) if committed_places else None


def _outcome(brain: JournaledBrain) -> Outcome:
    end = brain.state.ended
    assert end is not None, "a job that ended says how"
    return Outcome(
        end.result.value, end.reason, end.error, _newest_checkpoint(brain), brain.state.iteration, end.exit_code
    )
