"""What a workflow does next: pure. State is the fold of events; `advance(now)` makes the nodes that are due.

Rules after Argo 4.1's documented behaviour ("DAG", "Enhanced Depends Logic", "Retries", "Exit handlers").
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from runtime.workflow.depends import STATES, needs, satisfied
from runtime.workflow.events import Event, PodEnded, PodStarted, RunCreated, RunResumed, ShutdownAsked
from runtime.workflow.expressions import ExpressionError
from runtime.workflow.expressions.govaluate import should_run
from runtime.workflow.manifest import Manifest, Task, Template
from runtime.workflow.nodes import Node, NodeType, Phase, pod_name, scope_of
from runtime.workflow.retries import Decision, decide
from runtime.workflow.tags import substitute

EXIT_SUFFIX = ".onExit"


class Engine:
    """One run of one manifest."""

    def __init__(self, manifest: Manifest, created: RunCreated) -> None:
        self.manifest = manifest
        self.name = created.name
        self.uid = created.uid
        self.created = created.time
        self.nodes: dict[str, Node] = {}
        self.shutdown = ""
        self.finished = 0.0
        self._life = 0
        self._wake: float | None = None
        self.advance(created.time)

    def handle(self, event: Event) -> None:
        """Take an event in, and what follows from it. Time is the event's."""
        self.advance(event.time)
        match event:
            case PodStarted():
                node = self.nodes[event.node]
                node.become(Phase.RUNNING, event.time)
                node.started, node.pid, node.start_time = event.time, event.pid, event.start_time
            case PodEnded():
                self._ended(event)
            case ShutdownAsked():
                self.shutdown = event.strategy
            case RunResumed():
                self._resume()
        self.advance(event.time)

    def next_deadline(self) -> float | None:
        """When `advance` has something to do without an event (a backoff that ends)."""
        return self._wake

    @property
    def phase(self) -> Phase:
        """The workflow's phase."""
        main = self.nodes.get(self.name)
        if main is None or not self.finished:
            return Phase.RUNNING
        handler = self.nodes.get(self.name + EXIT_SUFFIX)
        if main.phase in (Phase.SUCCEEDED, Phase.SKIPPED) and handler and handler.phase.bad:
            return handler.phase
        if self.shutdown:
            return Phase.FAILED
        return Phase.SUCCEEDED if main.phase in (Phase.SKIPPED, Phase.OMITTED) else main.phase

    @property
    def message(self) -> str:
        """Why the workflow ended otherwise than well."""
        if self.shutdown and self.finished:
            return f"Stopped with strategy '{self.shutdown}'"
        main, handler = self.nodes.get(self.name), self.nodes.get(self.name + EXIT_SUFFIX)
        bad = next((n for n in (main, handler) if n and n.phase.bad), None)
        if bad and bad is main and bad.type is NodeType.SKIPPED:
            return f"error in entry template execution: {bad.message}"
        return bad.message if bad else ""

    def outputs(self) -> dict[str, str]:
        """Output parameters of the entrypoint's last tasks."""
        main = self.nodes[self.name]
        if main.type is not NodeType.DAG:
            return dict(main.parameters)
        last = self._targets(main, self.manifest.templates[main.template].tasks)
        return {name: value for node in last for name, value in node.parameters.items()}

    def pending(self) -> list[Node]:
        """Pods that shall be started."""
        return [node for node in self.nodes.values() if node.phase is Phase.PENDING]

    def running(self) -> list[Node]:
        """Pods that run."""
        return [n for n in self.nodes.values() if n.type is NodeType.POD and n.phase is Phase.RUNNING]

    def container(self, node: Node) -> dict[str, Any]:
        """The template of a pod, every tag replaced: globals first, then its inputs and retry variables."""
        template = self.manifest.templates[node.template]
        first = substitute(template.raw, self.globals(node.started))
        own = {f"inputs.parameters.{name}": value for name, value in node.inputs.items()}
        own["pod.name"] = pod_name(self.name, node)
        return substitute(first, {**own, **self._retry_scope(node)})

    def globals(self, now: float) -> dict[str, str]:
        """`workflow.*`."""
        stamp = datetime.fromtimestamp(self.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found = {
            "workflow.name": self.name, "workflow.uid": self.uid, "workflow.namespace": "default",
            "workflow.mainEntrypoint": self.manifest.entrypoint, "workflow.serviceAccountName": "default",
            "workflow.creationTimestamp": stamp, "workflow.status": "",
            "workflow.parameters": json.dumps(
                [{"name": name, "value": value} for name, value in self.manifest.parameters.items()]
            ),
        }  # fmt: skip
        found |= {f"workflow.parameters.{name}": value for name, value in self.manifest.parameters.items()}
        main = self.nodes.get(self.name)
        if main is not None and main.phase.fulfilled:
            failed = [
                {
                    "displayName": n.display_name,
                    "message": n.message,
                    "templateName": n.template,
                    "phase": n.phase.value,
                }
                for n in self.nodes.values()
                if n.phase.bad and not n.name.startswith(self.name + EXIT_SUFFIX)
            ]
            status = Phase.FAILED if self.shutdown else main.phase
            found |= {
                "workflow.status": status.value,
                "workflow.failures": json.dumps(json.dumps(failed or None)),
                "workflow.duration": f"{now - self.created:f}",
            }
        return found

    def successors(self, node: Node) -> list[str]:
        """Names of the nodes of tasks that wait for this node's task: what Argo draws as its children."""
        boundary = self.nodes.get(node.boundary)
        if boundary is None or node.type is NodeType.RETRY:
            return []  # its last attempt has them
        retried = self.nodes.get(node.name.rpartition("(")[0]) if node.name.endswith(")") else None
        if retried is not None and retried.children[-1] != node.name:
            return []
        task_name = (retried or node).display_name
        tasks = self.manifest.templates[boundary.template].tasks
        after = (f"{boundary.name}.{task.name}" for task in tasks if task_name in depends_on(task.depends))
        return [name for name in after if name in self.nodes]

    def children(self, node: Node) -> list[str]:
        """What Argo lists under a node: a DAG's first tasks, a retry's attempts, and what waits for the node."""
        own = node.children
        if node.type is NodeType.DAG:
            first = {t.name for t in self.manifest.templates[node.template].tasks if not t.depends}
            own = [name for name in own if self.nodes[name].display_name in first]
        return [*own, *self.successors(node)]

    def advance(self, now: float) -> None:
        """Make and end the nodes that are due at `now`, until nothing changes."""
        if self.finished:
            return
        self._wake = None
        while self._step(now):
            pass

    def _step(self, now: float) -> bool:
        """One pass; True when something changed."""
        if self.name not in self.nodes:
            entry = self.manifest.templates[self.manifest.entrypoint]
            self._start(self.name, self.name, entry, dict(self.manifest.parameters), "", now)
            return True
        before = [(n.name, n.phase) for n in self.nodes.values()]
        for node in list(self.nodes.values()):
            if node.phase is Phase.RUNNING and node.type is NodeType.RETRY:
                self._retry(node, now)
            elif node.phase is Phase.RUNNING and node.type is NodeType.DAG:
                self._dag(node, now)
        self._end(now)
        return before != [(n.name, n.phase) for n in self.nodes.values()]

    def _end(self, now: float) -> None:
        if not self.nodes[self.name].phase.fulfilled or any(not n.phase.fulfilled for n in self.nodes.values()):
            return
        handler = self.manifest.on_exit
        if handler and self.name + EXIT_SUFFIX not in self.nodes and self.shutdown != "Terminate":
            name = self.name + EXIT_SUFFIX
            self._start(name, name, self.manifest.templates[handler], {}, "", now)
        else:
            self.finished = now

    def _start(
        self, name: str, display: str, template: Template, given: Mapping[str, str], boundary: str, now: float
    ) -> None:
        inputs = {}
        for key, default in template.inputs.items():
            inputs[key] = given[key] if key in given else substitute(default or "", self.globals(now))
        wrong = self._unreadable(template, inputs, now)
        if wrong:
            said = f"task '{name}' errored: {wrong}" if boundary else wrong
            self.nodes[name] = Node(name, display, NodeType.SKIPPED, template.name, boundary, Phase.ERROR, now, {},
                                    message=said, finished=now, children=[])  # fmt: skip
            if boundary and boundary in self.nodes:
                self.nodes[boundary].children.append(name)
            return
        kind = NodeType.DAG if template.is_dag else NodeType.RETRY if template.retry is not None else NodeType.POD
        phase = Phase.PENDING if kind is NodeType.POD else Phase.RUNNING
        self.nodes[name] = Node(
            name, display, kind, template.name, boundary, phase, now, inputs, children=[], life=self._life
        )
        if boundary and boundary in self.nodes:
            self.nodes[boundary].children.append(name)

    def _unreadable(self, template: Template, inputs: Mapping[str, str], now: float) -> str:
        """Why the template's tags cannot be replaced; empty when they can."""
        try:
            own = {f"inputs.parameters.{name}": value for name, value in inputs.items()}
            substitute(substitute(template.raw, self.globals(now)), {**self.globals(now), **own})
        except ExpressionError as error:
            return str(error)
        return ""

    def _retry(self, node: Node, now: float) -> None:
        """Make the first or the next attempt, or end with the last one."""
        template = self.manifest.templates[node.template]
        attempts = [self.nodes[name] for name in node.children]
        if attempts and not attempts[-1].phase.fulfilled:
            return
        if attempts:
            last = attempts[-1]
            own = {f"inputs.parameters.{name}": value for name, value in node.inputs.items()}
            strategy = substitute(template.retry or {}, {**self.globals(now), **own})
            decision = Decision.stop(last.phase, last.message) if self.shutdown else decide(strategy, attempts, now)
            if decision.at is not None and decision.at > now:
                node.message = f"Backoff for {decision.at - now:.0f} seconds"
                self._wake = decision.at if self._wake is None else min(self._wake, decision.at)
                return
            if decision.at is None:
                node.parameters, node.artifacts = last.parameters, last.artifacts
                node.exit_code = last.exit_code
                node.become(decision.phase, now, decision.message)
                return
        elif self.shutdown:
            node.become(Phase.FAILED, now, f"Stopped with strategy '{self.shutdown}'")
            return
        number = len(attempts)
        name = f"{node.name}({number})"
        self.nodes[name] = Node(
            name, f"{node.display_name}({number})", NodeType.POD, node.template, node.boundary, Phase.PENDING, now,
            dict(node.inputs), children=[], life=self._life,
        )  # fmt: skip
        node.children.append(name)
        node.message = ""

    def _retry_scope(self, node: Node) -> dict[str, str]:
        parent, bracket, number = node.name.rpartition("(")
        if not bracket or parent not in self.nodes:
            return {}
        attempts = self.nodes[parent].children
        index = int(number.rstrip(")"))
        last = self.nodes[attempts[index - 1]] if index else None
        return {
            "retries": str(index),
            "lastRetry.exitCode": (last.exit_code or "-1") if last else "0",
            "lastRetry.status": last.phase.value if last else "",
            "lastRetry.duration": f"{last.finished - last.started:.0f}" if last else "0",
            "lastRetry.message": last.message if last else "",
        }

    def _dag(self, node: Node, now: float) -> None:
        tasks = self.manifest.templates[node.template].tasks
        if not self.shutdown:
            for task in tasks:
                if f"{node.name}.{task.name}" not in self.nodes:
                    self._task(node, task, now)
        found = [self.nodes.get(f"{node.name}.{task.name}") for task in tasks]
        if any(one is not None and not one.phase.fulfilled for one in found):
            return
        if all(one is not None for one in found) or self.shutdown:
            bad = sorted((one for one in self._targets(node, tasks) if one.phase.bad), key=lambda one: one.name)
            first = self.manifest.templates[node.template].raw["dag"].get("failFast", True)
            ended = bad[0 if first else -1].phase if bad else Phase.FAILED if None in found else Phase.SUCCEEDED
            message = f"Stopped with strategy '{self.shutdown}'" if self.shutdown and ended.bad else ""
            node.become(ended, now, message)

    def _targets(self, node: Node, tasks: tuple[Task, ...]) -> Iterator[Node]:
        """The leaves; an omitted one stands for what it waited for."""
        needs = {task.name: depends_on(task.depends) for task in tasks}
        needed = set().union(*needs.values()) if needs else set()
        open_, seen = [name for name in needs if name not in needed], set[str]()
        while open_:
            name = open_.pop()
            found = self.nodes.get(f"{node.name}.{name}")
            if name in seen or found is None:
                continue
            seen.add(name)
            yield found
            if found.phase is Phase.OMITTED:
                open_ += needs[name]

    def _task(self, boundary: Node, task: Task, now: float) -> None:
        """Make the task's node if what it depends on is decided."""
        name = f"{boundary.name}.{task.name}"
        done = {need: self.nodes.get(f"{boundary.name}.{need}") for need in depends_on(task.depends)}
        if any(one is None or not one.phase.fulfilled for one in done.values()):
            return
        known = {need: one for need, one in done.items() if one is not None}
        try:
            due = not task.depends or satisfied(task.depends, {need: _states(one) for need, one in known.items()})
        except ExpressionError as error:
            self._without_pod(name, task, boundary, Phase.ERROR, str(error), now)
            return
        if not due:
            self._without_pod(name, task, boundary, Phase.OMITTED, "omitted: depends condition not met", now)
            return
        scope = self.globals(now)
        scope |= {f"inputs.parameters.{key}": value for key, value in boundary.inputs.items()}
        for ancestor in self._ancestors(boundary, task.name):
            scope |= scope_of(f"tasks.{ancestor}", self.nodes[f"{boundary.name}.{ancestor}"])
        try:
            when = substitute(task.when, scope, strict=True)
            if when and not should_run(when):
                self._without_pod(name, task, boundary, Phase.SKIPPED, f"when '{when}' evaluated false", now)
                return
            given = substitute(task.parameters, scope, strict=True)
        except ExpressionError as error:
            self._without_pod(name, task, boundary, Phase.ERROR, str(error), now)
            return
        self._start(name, task.name, self.manifest.templates[task.template], given, boundary.name, now)

    def _ancestors(self, boundary: Node, name: str) -> set[str]:
        needs = {t.name: depends_on(t.depends) for t in self.manifest.templates[boundary.template].tasks}
        found: set[str] = set()
        open_ = list(needs[name])
        while open_:
            one = open_.pop()
            if one not in found:
                found.add(one)
                open_ += needs[one]
        return found

    def _without_pod(self, name: str, task: Task, boundary: Node, phase: Phase, message: str, now: float) -> None:
        self.nodes[name] = Node(
            name, task.name, NodeType.SKIPPED, task.template, boundary.name, phase, now, message=message, finished=now,
            children=[],
        )  # fmt: skip
        boundary.children.append(name)

    def _ended(self, event: PodEnded) -> None:
        node = self.nodes[event.node]
        if node.phase is Phase.PENDING:
            node.become(Phase.RUNNING, event.time)
        node.parameters, node.artifacts = dict(event.parameters), dict(event.artifacts)
        if event.late:
            node.become(Phase.FAILED, event.time, "Pod was active on the node longer than the specified deadline")
            return
        if event.exit_code is None:
            node.become(Phase.ERROR, event.time, event.error or "pod deleted")
            return
        node.exit_code = str(event.exit_code)
        if event.exit_code:
            if not event.said:
                node.parameters = {}
            said = f": {event.said}" if event.said else ""
            node.become(Phase.FAILED, event.time, f"main: Error (exit code {event.exit_code}){said}")
        elif event.error:
            node.become(Phase.ERROR, event.time, event.error)
        else:
            node.become(Phase.SUCCEEDED, event.time)

    def _resume(self) -> None:
        """Forget what did not succeed; DAGs around it run again."""
        self.shutdown, self.finished = "", 0.0
        self._life += 1
        kept = {
            name: node
            for name, node in self.nodes.items()
            if node.phase in (Phase.SUCCEEDED, Phase.SKIPPED) and not name.startswith(self.name + EXIT_SUFFIX)
        }
        again = {name: n for name, n in self.nodes.items() if name not in kept and n.type is NodeType.DAG}
        for name, node in again.items():
            if not name.startswith(self.name + EXIT_SUFFIX):
                node.phase, node.message, node.finished = Phase.RUNNING, "", 0.0
                kept[name] = node
        self.nodes = {name: node for name, node in self.nodes.items() if name in kept}
        for node in self.nodes.values():
            node.children = [child for child in node.children if child in self.nodes]


def _states(node: Node) -> dict[str, bool]:
    phase = "Errored" if node.phase is Phase.ERROR else node.phase.value
    return {state: phase == state for state in STATES}


def depends_on(depends: str) -> set[str]:
    """The tasks that a `depends` names."""
    return {name for name, _ in needs(depends)}
