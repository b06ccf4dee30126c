"""What a workflow does next. Pure: state is the fold of events, and `advance(now)` runs what is due.

Work is a queue. A node that ends notifies the one node that waits for it (a DAG, a group, a retry), which looks only at
what that changes. The rules follow Argo 4.1's documentation and recorded answers of its server.
"""

import heapq
from collections import deque
from collections.abc import Mapping
from typing import Any

from everstep.runtime.workflow.engine import node_completion, variables
from everstep.runtime.workflow.engine.containers import readiness_probe
from everstep.runtime.workflow.engine.dag import DagRun
from everstep.runtime.workflow.engine.events import (
    Event,
    GateOpened,
    NodeSet,
    NodesResumed,
    PodEnded,
    PodLoading,
    PodReady,
    PodStarted,
    RunCreated,
    RunResumed,
    ShutdownAsked,
)
from everstep.runtime.workflow.engine.gates import GateResult
from everstep.runtime.workflow.engine.hooks import Hooks
from everstep.runtime.workflow.engine.limits import Limits
from everstep.runtime.workflow.engine.node_factory import NodeFactory
from everstep.runtime.workflow.engine.nodes import Node, NodeType, Phase
from everstep.runtime.workflow.engine.retries import RetryRun
from everstep.runtime.workflow.engine.run_state import Composite, Gate, Kill, RunState
from everstep.runtime.workflow.engine.steps import StepsRun
from everstep.runtime.workflow.engine.template_call import Call
from everstep.runtime.workflow.engine.workflow_root import Root
from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.expressions.bounds import use_meter
from everstep.runtime.workflow.manifest.parse import Manifest


class Engine:
    """One run of one manifest."""

    def __init__(self, manifest: Manifest, creation: RunCreated) -> None:
        self.state = RunState(creation.name, creation.uid, creation.time, manifest, creation.time)
        self.now = creation.time
        """The newest time that the engine has seen."""
        self._begin_life()
        self.advance(creation.time)

    def _begin_life(self) -> None:
        """Begin the life of the run that `state` holds."""
        self._queue: deque[tuple[str, str]] = deque()
        self._has_room = False
        """A place may have become free for a call that waits."""
        self._timers: list[tuple[float, int, str, str]] = []
        self._timed = 0
        self.variables = variables.Variables(self)
        self.limits = Limits(self)
        self.hooks = Hooks(self)
        self.factory = NodeFactory(self)
        self.root = Root(self)
        self.root.begin(self.state.began)

    def _resume(self, event: RunResumed) -> None:
        state_before = self.state
        kept = node_completion.reusable_nodes(self, {*event.again}, event.after_failures)
        # Other parameters may let more run in a group.
        settled = set[str]() if event.parameters else node_completion.settled_names(self, kept)
        self.state = RunState(
            state_before.name, state_before.uid, state_before.created,
            state_before.manifest.with_parameters(event.parameters),
            event.time,
            state_before.lives + 1, kept, settled,
        )  # fmt: skip
        self._begin_life()

    def handle(self, event: Event) -> None:
        """Apply an event and everything that follows from it, at the event's time."""
        self.advance(event.time)
        match event:
            case PodLoading():
                if not self.state.nodes[event.node].phase.fulfilled:
                    node_completion.set_deadline(self, self.state.nodes[event.node], event.time)
            case PodStarted():
                self._on_pod_start(event)
            case PodReady():
                node = self.state.nodes[event.node]
                if not node.phase.fulfilled and not node.daemoned:
                    self._mark_ready(node)
                    self.notify_owner(node.name)
            case PodEnded():
                if not self.state.nodes[event.node].phase.fulfilled:
                    node_completion.handle_pod_end(self, event)
                self.state.kills.pop(event.node, None)
            case ShutdownAsked():
                again, self.state.shutdown = bool(self.state.shutdown), event.strategy
                node_completion.shut_down(self, event.time, at_once=again)
            case NodesResumed():
                node_completion.resume_nodes(self, event)
            case NodeSet():
                node_completion.set_node(self, event)
            case GateOpened():
                # There is none any more if the deadline passed, or a stop was logged, before the event.
                if gate := self.state.gates.pop(event.node, None):
                    gate.then(GateResult(event.hit, event.parameters, event.artifacts, event.result), event.time)
            case RunResumed():
                self._resume(event)
        self.advance(event.time)

    def _on_pod_start(self, event: PodStarted) -> None:
        """A pod runs. Kill it if its node has already ended, by a deadline or a stop."""
        node = self.state.nodes[event.node]
        node.pid, node.start_time = event.pid, event.start_time
        if node.phase.fulfilled:
            self.kill(node, node.message)
            return
        if node.spec.get("daemon") and readiness_probe(node.spec) is None:
            self._mark_ready(node)
        self.set_phase(node, Phase.RUNNING, event.time)
        node_completion.set_deadline(self, node, event.time)

    def _mark_ready(self, node: Node) -> None:
        """Count a daemon as done; it runs on until the DAG or Steps node around it ends."""
        node.daemoned = True
        self.state.daemons.setdefault(node.boundary, []).append(node)

    def advance(self, now: float) -> None:
        """Run everything that is due at `now`."""
        self.now = now
        with use_meter():
            while True:
                self._drain_queue(now)
                if not self._timers or self._timers[0][0] > now or self.state.finished:
                    return
                _, _, kind, name = heapq.heappop(self._timers)
                self._fire_timer(kind, name, now)

    def next_deadline(self) -> float | None:
        """When `advance` has to be called next without an event; None: not before one."""
        return self._timers[0][0] if self._timers and not self.state.finished else None

    def set_timer(self, at: float, kind: str, name: str) -> None:
        """Set a timer of that kind for a node: `_fire_timer` is called at that time."""
        self._timed += 1
        heapq.heappush(self._timers, (at, self._timed, kind, name))

    def _fire_timer(self, kind: str, name: str, now: float) -> None:
        if kind == "again":
            composite = self.state.composites[name]
            assert isinstance(composite, RetryRun)
            composite.end_backoff(now)
        elif kind == "workflow":
            self.state.late = True
            node_completion.shut_down(self, now)
        elif not self.state.nodes[name].phase.fulfilled:
            node_completion.handle_timeout(self, self.state.nodes[name], kind, now)

    def _drain_queue(self, now: float) -> None:
        while self._queue or self._has_room:
            if not self._queue:
                self._has_room = False
                self.limits.start_waiting(now)
                continue
            kind, name = self._queue.popleft()
            node = self.state.nodes.get(name)
            if kind == "begin":
                self.state.composites[name].begin(now)
            elif kind == "fast":
                self._fail_fast(name, now)
            elif node is not None:
                self._dispatch_change(node, now)

    def _dispatch_change(self, node: Node, now: float) -> None:
        """A node has changed: start its hooks; once they have ended, notify the node's owner."""
        if not self.hooks.start_due(node, now) or not (node.phase.fulfilled or node.daemoned):
            return
        owner = self.state.composites.get(node.owner)
        if owner is not None:
            owner.on_child_end(node, now)
        else:
            self.root.on_node_end(node, now)

    @property
    def phase(self) -> Phase:
        """The workflow's phase."""
        return self.root.phase

    @property
    def message(self) -> str:
        """Why the workflow failed; empty otherwise."""
        return self.root.message

    def pending_pods(self) -> list[Node]:
        """Pods to start."""
        return [] if self.state.finished else list(self.state.pending.values())

    def running_pods(self) -> list[Node]:
        """Running pods."""
        return list(self.state.running.values())

    def kill(self, node: Node, message: str, keeps_code: bool = False, at_once: bool = False) -> None:
        """Ask for the end of a running pod. The first reason given is kept."""
        kill_before = self.state.kills.get(node.name)
        self.state.kills[node.name] = (
            kill_before._replace(at_once=at_once) if kill_before else Kill(message, keeps_code, at_once)
        )

    def notify_owner(self, name: str) -> None:
        """Have the owner of a node look at it again."""
        self._queue.append(("told", name))

    def call(self, call: Call, now: float) -> None:
        """Run a template as soon as the limits allow; the owner is notified when its node ends."""
        if self.limits.admit(call):
            self.factory.start(call, now)

    def wait_for_gate(self, gate: Gate) -> None:
        """Hold a call until the executor opens the gate: its locks are taken, or its memo was looked up."""
        self.state.gates[gate.name] = gate

    def add_node(self, node: Node) -> None:
        """Register a new node."""
        self.state.nodes[node.name] = node
        if node.name == self.state.name:
            node.children.extend(self.root.started_hooks())
        with use_meter() as meter:
            meter.grant(1)
        if node.phase is Phase.PENDING:
            self.state.pending[node.name] = node
        elif node.type is NodeType.SUSPEND and node.phase is Phase.RUNNING:
            self.state.suspended[node.name] = node

    def manage(self, node: Node, composite: Composite, now: float) -> None:
        """Let the composite manage what the node owns; it begins when the queued work before it is done."""
        self.state.composites[node.name] = composite
        self._queue.append(("begin", node.name))

    def set_phase(self, node: Node, phase: Phase, now: float, message: str = "", error_raised: str = "") -> None:
        """Change a node's phase and notify its owner."""
        node.set_phase(phase, now, message)
        self.state.pending.pop(node.name, None)
        if phase is Phase.RUNNING:
            self.state.running[node.name] = node
        else:
            self.state.running.pop(node.name, None)
            self.state.suspended.pop(node.name, None)
            node.spec = node.spec if node.type in (NodeType.DAG, NodeType.STEPS) else {}
        if error_raised:
            self.state.raised[node.name] = error_raised
        self._queue.append(("told", node.name))
        if node.memo[0] and phase is Phase.SUCCEEDED and not node.memo_hit:
            self.state.remembered.append(node)
        if phase.fulfilled:
            self.limits.on_node_end(node)
            node_completion.end_daemons(self, node, now)

    def schedule_fail_fast(self, boundary: str) -> None:
        """Fail a template with failFast: a child has failed and no other is running."""
        self._queue.appendleft(("fast", boundary))

    def _fail_fast(self, name: str, now: float) -> None:
        composite = self.state.composites[name]
        if not self.state.nodes[name].phase.fulfilled and isinstance(composite, DagRun | StepsRun):
            composite.fail_fast(now)

    def admit_waiting_calls(self) -> None:
        """Have the limits look whether a waiting call may begin, once all that has ended is known to its owners."""
        self._has_room = True

    def call_task(self, call: Call, task: Mapping[str, Any], now: float) -> None:
        """Run the template that a task, step or hook of the call's boundary names, with its arguments."""
        boundary = self.state.nodes.get(call.boundary)
        try:
            template, home = self.state.manifest.template(task, boundary.home if boundary else "")
        except ExpressionError as error:
            self.factory.skip(call, Phase.ERROR, str(error), now, error_raised=str(error))
            return
        self.call(call._replace(template=template, home=home, arguments=task.get("arguments") or {}), now)
