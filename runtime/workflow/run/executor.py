"""Runs a manifest: the engine decides, this shell starts pods and waits for them. Every event is logged first."""

import asyncio
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from everstep.runtime import faults
from everstep.runtime.system.processes import start_time
from everstep.runtime.system.rotate import Rotation
from everstep.runtime.workflow.artifacts.archives import DEFAULT_LIMITS, UnpackLimits
from everstep.runtime.workflow.engine.containers import readiness_probe
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import (
    Event,
    EventLog,
    GateOpened,
    PodReady,
    RunCreated,
    RunResumed,
    ShutdownAsked,
    read_events,
)
from everstep.runtime.workflow.engine.nodes import Node, Phase
from everstep.runtime.workflow.local_pods import clock, readiness
from everstep.runtime.workflow.local_pods.pod import has_namespaces
from everstep.runtime.workflow.local_pods.pod_launcher import PodLauncher, PodSettings
from everstep.runtime.workflow.local_pods.pod_starter import Starter
from everstep.runtime.workflow.local_pods.runner import ProcessRunner, Runner, kill_leftovers
from everstep.runtime.workflow.local_pods.sandbox import Sandbox
from everstep.runtime.workflow.local_pods.sandbox import check_available as check_sandbox
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.parse import NO_LIBRARY, Manifest, parse
from everstep.runtime.workflow.run import control_requests, run_folder, status
from everstep.runtime.workflow.run.lost_outputs import nodes_without_outputs
from everstep.runtime.workflow.run.run_locks import SharedState

LOCK_POLL_S = 0.3
"""How often to try locks that other runs hold."""
REQUEST_POLL_S = 0.2
SHARED_FOLDERS = (
    "this kernel has no namespaces: pods share this machine's folders and start in this one, and their commands' "
    "paths are rewritten"
)
GRACE_S = 20.0
"""From SIGTERM to SIGKILL, as Argo's pods have had it."""


@dataclass(frozen=True)
class RunOptions:
    """Where and how to run."""

    name: str
    runs: Path = Path("runs")
    library: Library = NO_LIBRARY
    """What the manifest refers to: WorkflowTemplates, ConfigMaps, Secrets, and commands of images."""
    path: tuple[Path, ...] = ()
    """Folders of programs that images would bring; they come first in every pod's PATH."""
    on_change: "Callable[[Engine, Path], None] | None" = None
    """Called after each change, and about twice a second while pods run."""
    restart: str = ""
    """Selector of nodes of an ended run that run again although they succeeded (see `control_requests`)."""
    sandbox: Sandbox | None = None
    """How pods are sandboxed; None: they are not."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """New values of workflow parameters, for a run that has ended."""
    variables: tuple[str, ...] = ()
    """Names of the launcher's own variables that pods get besides those of `inherited_variables.INHERITED_GROUPS`."""
    limits: UnpackLimits = DEFAULT_LIMITS
    """What archives of artifacts may unpack to."""
    work_dir: Path | None = None
    """Where containers begin that name no workingDir; None: at `/`, as in most images."""


class RunResult(NamedTuple):
    """How a run ended."""

    phase: Phase
    message: str
    folder: Path
    exit_code: int
    """0 Succeeded, 130 stopped, else the exit code of the first failed pod (1 where there is none)."""
    outputs: dict[str, str]
    """Output parameters of the entrypoint, or of its last tasks where it declares none."""


def run_workflow(source: dict[str, Any], options: RunOptions) -> RunResult:
    """`execute` as the main work of a process: SIGINT or SIGTERM stops the run, a second one terminates it."""
    return asyncio.run(execute(source, options, signals=(signal.SIGINT, signal.SIGTERM)))


async def execute(
    source: dict[str, Any], options: RunOptions, signals: Sequence[signal.Signals] = (), runner: Runner | None = None
) -> RunResult:
    """Run the manifest to its end, or resume the unfinished run of that name. `signals` stop it.

    `runner`: starts the pods; processes of this machine by default. Raises ManifestError: it cannot be run here, the
    name belongs to a run of another manifest, or another process runs it; NoSandboxError where there can be none;
    CannotWriteError: nothing can be written.
    """
    manifest = parse(source, options.library)
    if options.sandbox:
        check_sandbox()
    with run_folder.explain_write_errors(options.runs, options.name):
        return await _execute(manifest, source, options, signals, runner)


async def _execute(
    manifest: Manifest, source: dict[str, Any], options: RunOptions, signals: Sequence[signal.Signals],
    runner: Runner | None,
) -> RunResult:  # fmt: skip
    folder = run_folder.ensure_folder(options.runs.absolute(), options.name, source, options.sandbox)
    with run_folder.lock(folder):
        inputs = run_folder.RunInputs(
            options.library, tuple(options.path), options.variables, options.sandbox, options.work_dir
        )
        run_folder.write_inputs(folder, source, inputs)
        executor = _Executor(manifest, options, folder, runner or ProcessRunner())
        await executor.run(signals)
        if executor.has_failed and await asyncio.to_thread(executor.lost_nodes):
            # Whatever failed may have missed it. One more life makes it again; a second loss is not undone.
            executor = _Executor(manifest, replace(options, restart=""), folder, runner or ProcessRunner())
            await executor.run(signals)
        return executor.result()


class _Executor:
    """One life of one run's launcher."""

    def __init__(self, manifest: Manifest, options: RunOptions, folder: Path, runner: Runner) -> None:
        self._options = options
        self._folder = folder
        before = list(read_events(folder / "events.jsonl"))
        self._clock = clock.resume_clock(before, start_time)
        self._log = EventLog(folder / "events.jsonl")
        if not before:
            before = [RunCreated(self._clock.now(), options.name, str(uuid.uuid4()))]
            self._append_event(before[0])
        first, *rest = before
        assert isinstance(first, RunCreated)
        self.engine = Engine(manifest, first)
        for event in rest:
            self.engine.handle(event)
        self._begin_another_life()
        self._changed = asyncio.Event()
        self._runner = runner
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        settings = PodSettings(options.path, options.variables, options.limits, options.sandbox, options.work_dir)
        self._launch = PodLauncher(self.engine, folder, self._clock, settings)
        self._starter = Starter(self.engine, self._launch, runner, self._clock, self._record, self._changed.set)
        self._shared = SharedState(folder.parent, options.name)
        self._holding = self._shared.lock_holders()
        self._status = status.StatusWriter(self.engine, folder)
        self._written, self._stale = 0.0, True
        self._unwritten: OSError | None = None
        self._logs = Rotation()

    def _begin_another_life(self) -> None:
        """Resume a run that has ended otherwise than well, has lost outputs, or is asked to run some nodes again."""
        if not self.engine.state.finished:
            return
        nodes_to_repeat = self.lost_nodes()
        if nodes_to_repeat:
            names = ", ".join(self.engine.state.nodes[name].display_name for name in nodes_to_repeat)
            print(f"{names}: outputs are gone; runs again, with what comes after", file=sys.stderr)
        if nodes_to_repeat or self._options.restart or self.engine.phase is not Phase.SUCCEEDED:
            again = control_requests.succeeded_nodes(self.engine, self._options.restart)
            nodes_again, parameters = [*again, *nodes_to_repeat], dict(self._options.parameters)
            self._record(RunResumed(self._clock.now(), nodes_again, parameters, after_failures=True))

    @property
    def has_failed(self) -> bool:
        """Whether the run has ended badly, and nobody stopped it."""
        return bool(self.engine.state.finished) and self.engine.phase.bad and not self.engine.state.shutdown

    def lost_nodes(self) -> list[str]:
        """Names of finished nodes whose outputs somebody removed."""
        return nodes_without_outputs(self.engine, self._folder.parent / "artifacts")

    def result(self) -> RunResult:
        """How it ended."""
        phase = self.engine.phase
        code = 0
        if phase is not Phase.SUCCEEDED:
            codes = [
                int(n.outputs.exit_code)
                for n in self.engine.state.nodes.values()
                if n.phase.bad and n.outputs.exit_code
            ]
            code = 130 if self.engine.state.shutdown else next(filter(None, codes), 1)
        return RunResult(phase, self.engine.message, self._folder, code, self.engine.state.outputs())

    async def run(self, signals: Sequence[signal.Signals]) -> None:
        """Run until the workflow has ended."""
        loop = asyncio.get_running_loop()
        for signum in signals:
            loop.add_signal_handler(signum, self._stop_on_signal)
        if not has_namespaces():
            print(SHARED_FOLDERS, file=sys.stderr)
        view, listener = asyncio.create_task(self._notify_view_regularly()), asyncio.create_task(self._poll_requests())
        self._logs.start()
        listener.add_done_callback(lambda _: self._changed.set())
        try:
            self._status.write()  # Before the first pod, so that a pod found without a launcher has a status to read.
            self._handle_requests()
            while not self.engine.state.finished:
                self._changed.clear()
                if listener.done():
                    listener.result()  # What went wrong in it ends the executor.
                if self._unwritten:
                    raise self._unwritten
                self._apply_decisions()
                self._write_status_if_due(time.monotonic())
                if self.engine.state.finished:
                    break
                await self._wait_for_change()
            await self._end_remaining_pods()
            await asyncio.to_thread(kill_leftovers, self._folder)
            self._open_gates()
            self._launch.remove_leftovers()
        finally:
            view.cancel()
            listener.cancel()
            self._starter.end_loading()
            try:
                self._status.write()
            finally:
                self._log.close()
                self._runner.close()
            self._notify_view()

    async def _wait_for_change(self) -> None:
        """Wait for a change, the engine's next deadline, or the time to write the status."""
        waits = [self._written + self._status.every_s - time.monotonic()] if self._stale else []
        deadline = self.engine.next_deadline()
        waits += [] if deadline is None else [deadline - self._clock.now()]
        waits += [LOCK_POLL_S] if self.engine.state.gates else []
        await asyncio.sleep(0)  # What has happened meanwhile is seen, also when there is more to be done at once.
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(waits)) if waits else None):
                await self._changed.wait()
        now = self._clock.now()
        if deadline is not None and deadline <= now:
            self._stale = True
            self.engine.advance(now)

    def _write_status_if_due(self, now: float) -> None:
        """Write the status if it changed and the file is old enough."""
        if self._stale and now - self._written >= self._status.every_s:
            self._status.write()
            self._written, self._stale = time.monotonic(), False

    def _append_event(self, event: Event) -> None:
        facts = {"event": type(event).__name__}
        faults.point("executor.before_event", **facts)
        self._log.append(event)
        faults.point("executor.after_event", **facts)

    def _record(self, event: Event) -> None:
        self._append_event(event)
        self.engine.handle(event)
        self._stale = True

    def _apply_decisions(self) -> None:
        """Start pending pods, watch running ones, end those that are to end. Pods found after a crash are adopted."""
        self._open_gates()
        self._starter.start_some()
        for node in self.engine.running_pods():
            if node.name not in self._watched:
                self._watched[node.name] = asyncio.create_task(self._watch(node))
        for task in self._watched.values():
            if task.done():
                task.result()  # An error in it ends the executor; the pods go on.
        for name, kill in self.engine.state.kills.items():
            if name not in self._ending or kill.at_once:
                grace = 0.0 if kill.at_once else GRACE_S
                self._ending[name] = asyncio.create_task(self._end_pod(self.engine.state.nodes[name], grace))

    def _open_gates(self) -> None:
        """Take locks and look up memos for waiting calls; memoize outputs and release locks of ended nodes."""
        while self.engine.state.remembered:
            node = self.engine.state.remembered.pop()
            memo_values = {"parameters": node.outputs.parameters, "artifacts": node.outputs.artifacts}
            self._shared.remember(*node.memo, {**memo_values, "result": node.outputs.result}, node.finished)
        for name in list(self._holding):
            node = self.engine.state.nodes.get(name)
            if (node is not None and node.phase.fulfilled) or self.engine.state.finished:
                self._shared.release_locks(name)
                self._holding.discard(name)
        for name, gate in list(self.engine.state.gates.items()):
            now = self._clock.now()
            if gate.memo is not None:
                hit = self._shared.look_up(gate.memo, now)
                self._record(GateOpened(now, name, hit.hit, hit.parameters, hit.artifacts, hit.result))
            elif self._shared.take_locks(name, gate.locks):
                self._holding.add(name)
                self._record(GateOpened(now, name))

    async def _watch(self, node: Node) -> None:
        """Watch a pod until its end is recorded."""
        try:
            await self._watch_pod(node)
        finally:
            self._changed.set()

    async def _watch_pod(self, node: Node) -> None:
        """Wait for the pod's process, then read its exit code and outputs."""
        probe = None if node.daemoned else readiness_probe(node.spec)
        asking = asyncio.create_task(self._probe_readiness(node, probe)) if probe else None
        log = self._launch.pod(node).log
        self._logs.paths.add(log)
        try:
            await self._runner.wait_until_gone(node.pid, node.start_time)
        finally:
            self._logs.paths.discard(log)
            if asking:
                asking.cancel()
        end = await self._launch.collect_end(node)
        faults.point("executor.after_exit", node=node.name)
        self._record(end)
        del self._watched[node.name]

    async def _probe_readiness(self, node: Node, probe: Mapping[str, Any]) -> None:
        await readiness.wait_until_ready(probe)
        self._record(PodReady(self._clock.now(), node.name))
        self._changed.set()

    def _stop_on_signal(self) -> None:
        strategy = "Terminate" if self.engine.state.shutdown else "Stop"
        try:
            self._record(ShutdownAsked(self._clock.now(), strategy))
            self._status.write()
        except OSError as error:  # The event loop calls this and would drop the error.
            self._unwritten = error
        words = "stopping; interrupt again to end at once" if strategy == "Stop" else "ending at once"
        print(words, file=sys.stderr)
        self._changed.set()

    async def _end_pod(self, node: Node, grace_s: float) -> None:
        pid, began = node.pid, node.start_time
        if grace_s:
            self._runner.send_signal(pid, began, signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self._runner.wait_until_gone(pid, began)
        except TimeoutError:
            self._runner.send_signal(pid, began, signal.SIGKILL)

    async def _end_remaining_pods(self) -> None:
        """End the pods that still run after the workflow has ended, such as by a failed hook."""
        for watch in self._watched.values():
            watch.cancel()
        running_nodes = {node.name: node for node in self.engine.running_pods()}
        running_nodes |= {name: self.engine.state.nodes[name] for name in self.engine.state.kills}
        await asyncio.gather(*(self._end_pod(node, GRACE_S) for node in running_nodes.values()))

    async def _poll_requests(self) -> None:
        """Handle control requests until cancelled."""
        while True:
            self._handle_requests()
            await asyncio.sleep(REQUEST_POLL_S)

    def _handle_requests(self) -> None:
        for path, wish in control_requests.pending_requests(self._folder):
            try:
                for event in control_requests.request_events(self.engine, wish, self._clock.now()):
                    self._record(event)
            except control_requests.ControlRequestError as error:
                control_requests.refuse_request(path, str(error))
            path.unlink()
            self._changed.set()

    async def _notify_view_regularly(self) -> None:
        while True:
            self._notify_view()
            await asyncio.sleep(0.5)

    def _notify_view(self) -> None:
        if self._options.on_change:
            self.engine.now = self._clock.now()
            self._options.on_change(self.engine, self._folder)
