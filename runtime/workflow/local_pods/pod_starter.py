"""Starts pending pods, some at a time, so that stops, deadlines and ended pods are handled in between."""

import asyncio
from collections.abc import Callable
from itertools import islice

from everstep.runtime import faults
from everstep.runtime.net import web
from everstep.runtime.workflow.artifacts import artifacts
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import INIT_FAILED, Event, PodEnded, PodLoading, PodStarted
from everstep.runtime.workflow.engine.nodes import Node
from everstep.runtime.workflow.local_pods.clock import Clock
from everstep.runtime.workflow.local_pods.pod import NOT_STARTED, PodError
from everstep.runtime.workflow.local_pods.pod_launcher import PodLauncher
from everstep.runtime.workflow.local_pods.runner import Runner
from everstep.runtime.workflow.manifest.library import MissingObjectError

STARTS_AT_ONCE = 16
"""How many pods are started side by side, before the launcher looks at anything else."""
CANCELLED = "context canceled"
MAX_PODS = 110
"""How many pods run at once: as many as a node of Kubernetes has ("maxPods" of the kubelet's configuration). Others
stay Pending, as they do there. A daemon that is ready does not count: what uses it may be what waits."""


class Starter:
    """Starts the pods of one launcher. `record` takes events; `on_change` wakes the launcher."""

    def __init__(
        self, engine: Engine, launch: PodLauncher, runner: Runner, clock: Clock, record: Callable[[Event], None],
        on_change: Callable[[], None],
    ) -> None:  # fmt: skip
        self._engine = engine
        self._launch = launch
        self._runner = runner
        self._clock = clock
        self._record = record
        self._changed = on_change
        self._loading: dict[str, tuple[asyncio.Task[None], web.Ending]] = {}
        self._loaded: set[str] = set()

    def start_some(self) -> None:
        """Start pending pods, at most STARTS_AT_ONCE; `on_change` is called if any started. Raises what loading raised.

        Invariant: at most MAX_PODS pods load or run; ready daemons do not count.
        """
        for name, (task, ending) in self._loading.items():
            if self._engine.state.nodes[name].phase.fulfilled:  # Its deadline has passed, or the run is being stopped.
                ending.end(CANCELLED)
            if task.done():
                task.result()
        running = sum(not node.daemoned for node in self._engine.running_pods())
        room = MAX_PODS - running - len(self._loading)
        ready = (node for node in self._engine.pending_pods() if node.name not in self._loading)
        some = list(islice(ready, max(0, min(STARTS_AT_ONCE, room))))
        for node in some:
            if self._needs_loading(node):
                ending = web.Ending()
                self._loading[node.name] = (asyncio.create_task(self._load(node, ending)), ending)
        self._start([node for node in some if node.name not in self._loading])
        if some:
            self._changed()

    def _needs_loading(self, node: Node) -> bool:
        """Whether it has input artifacts to load, or is a data template."""
        if node.spec.get("data"):
            return True
        return bool(
            node.inputs.get("artifacts")
            and node.name not in self._loaded
            and not self._launch.pod(node).claiming_process()
        )

    def end_loading(self) -> None:
        """End all loading, so that no thread keeps the launcher from ending."""
        for task, ending in self._loading.values():
            ending.end(CANCELLED)
            task.cancel()

    async def _load(self, node: Node, ending: web.Ending) -> None:
        """Put a pod's input artifacts in place; a data template needs no more."""
        self._record(PodLoading(self._clock.now(), node.name))
        try:
            if node.spec.get("data"):
                self._record(await self._launch.run_data_template(node))
            else:
                await self._launch.load_inputs(node, ending)
                self._loaded.add(node.name)
        except artifacts.ArtifactError as error:
            message = f"{INIT_FAILED} (exit code 64): {error}"
            self._record(PodEnded(self._clock.now(), node.name, None, error=message))
        finally:
            self._changed()
        del self._loading[node.name]

    def _start(self, nodes: list[Node]) -> None:
        """Start pods side by side. A pod that an earlier launcher started is only recorded."""
        nodes_by_claim: dict[str, Node] = {}
        requests = []
        for node in nodes:
            pod = self._launch.pod(node)
            if process := pod.claiming_process():
                self._record(PodStarted(self._clock.now(), node.name, *process))
                continue
            try:
                requests.append(self._launch.start_request(node))
                nodes_by_claim[str(pod.claim_file)] = node
            except (PodError, MissingObjectError, ValueError) as error:  # ValueError: a number that cannot be read.
                self._record_start_failure(node, error)
        for claim, answer in self._runner.start(requests).items() if requests else ():
            node = nodes_by_claim[claim]
            try:
                pid, began = self._launch.pod(node).started_process(answer)
            except PodError as error:
                self._record_start_failure(node, error)
                continue
            faults.point("executor.after_start", node=node.name)
            self._record(PodStarted(self._clock.now(), node.name, pid, began))

    def _record_start_failure(self, node: Node, error: Exception) -> None:
        log = self._launch.pod(node).log
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"{error}\n", errors="replace")
        self._record(PodEnded(self._clock.now(), node.name, NOT_STARTED, said=str(error)))
