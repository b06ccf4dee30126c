"""A running DAG: each task begins when the tasks that it depends on have ended; the targets give the DAG its phase."""

from collections.abc import Collection, Mapping
from typing import Any

from everstep.runtime.workflow.engine import node_graph, outputs
from everstep.runtime.workflow.engine.loops import expand_loop, is_loop
from everstep.runtime.workflow.engine.nodes import Node, NodeType, Phase
from everstep.runtime.workflow.engine.scheduler import Scheduler
from everstep.runtime.workflow.engine.scope import Scope, loop_outputs, node_artifacts, node_scope, tasks_read
from everstep.runtime.workflow.engine.template_call import (
    FAIL_FAST,
    Call,
    artifact_names_read,
    first_unset,
    input_artifacts,
    resolve_arguments,
    resolve_artifacts,
    template_scope,
)
from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.expressions.govaluate import should_run
from everstep.runtime.workflow.expressions.tags import names_read, substitute
from everstep.runtime.workflow.manifest.depends import Ancestry, depends_of, is_satisfied, needs

NEVER = "{{{{{}}}}} is never set; Argo would wait forever"


class DagRun:
    """One node of type DAG."""

    def __init__(self, engine: Scheduler, node: Node) -> None:
        self._engine = engine
        self._node = node
        self._tasks: dict[str, Mapping[str, Any]] = {}
        for task in node.spec["dag"]["tasks"]:
            self._tasks[str(task["name"])] = task
        self._depends = {name: depends_of(task, self._tasks) for name, task in self._tasks.items()}
        self._needs = {name: {need for need, _ in needs(text)} for name, text in self._depends.items()}
        self._ancestors = Ancestry(self._needs)
        self._followers: dict[str, list[str]] = {name: [] for name in self._tasks}
        for name, needed_tasks in self._needs.items():
            for need in needed_tasks:
                self._followers[need].append(name)
        self._missing = {name: len(needed_tasks) for name, needed_tasks in self._needs.items()}
        self._own = {f"{node.name}.{name}": name for name in self._tasks}
        self._targets = str(node.spec["dag"].get("target") or "").split()
        if not self._targets:
            self._targets = sorted(name for name in self._tasks if not self._followers[name])
            self._wanted = set(self._tasks)
        else:
            self._wanted = set(self._targets).union(*map(self._ancestors.ancestors, self._targets))
        self._open = len(self._wanted)
        self._done: set[str] = set()
        self._lists: dict[str, Scope] = {}

    def begin(self, now: float) -> None:
        """Start the tasks without dependencies. A target that names no task is an error, as for Argo's controller."""
        if unknown := [name for name in self._targets if name not in self._tasks]:
            self.fail(f"target {unknown[0]} does not exist", now)
            return
        for name in [name for name in self._tasks if name in self._wanted and not self._needs[name]]:
            self._start_task(name, now)
        self._finish_if_done(now)

    def on_child_end(self, child: Node, now: float) -> None:
        """A task has ended: start the tasks that waited only for it."""
        name = self._own[child.name]
        if name in self._done:
            return
        self._done.add(name)
        error_raised = self._engine.state.raised.pop(child.name, "")
        if error_raised and child.type is not NodeType.TASK_GROUP and child.phase is Phase.ERROR:
            child.message = f"task '{child.name}' errored: {error_raised}"
        self._engine.variables.export(child)
        self._open -= 1
        if self._engine.limits.has_failed_fast(self._node.name):
            return
        for follower in self._followers[name]:
            self._missing[follower] -= 1
            if not self._missing[follower] and follower in self._wanted:
                self._start_task(follower, now)
        self._finish_if_done(now)

    def fail_fast(self, now: float) -> None:
        """Fail the DAG: failFast is set, a child has failed, and no child is running any more."""
        self._engine.set_phase(self._node, Phase.FAILED, now, FAIL_FAST)

    def fail(self, message: str, now: float) -> None:
        """End the DAG at once with the error of a hook."""
        if not self._node.phase.fulfilled:
            self._engine.set_phase(self._node, Phase.ERROR, now, message, error_raised=message)

    def hook_scope(self, read: Collection[str], now: float) -> Scope:
        """The scope of a task's hooks: globals, the DAG's inputs, and the tasks that the hooks name."""
        scope = {**self._engine.variables.global_scope(now), **template_scope(self._node.spec)}
        for name in tasks_read("tasks", read, self._tasks):
            scope |= self._task_scope(name)
        return scope

    def _task_call(self, task: Mapping[str, Any], suffix: str, owner: str) -> Call:
        name = f"{self._node.name}.{task['name']}{suffix}"
        title, reference = self._engine.state.manifest.template_name(task), task.get("templateRef") or {}
        return Call(name, f"{task['name']}{suffix}", {}, {}, self._node.name, owner, title=title, reference=reference)

    def _attach(self, name: str) -> None:
        needs = self._needs[name]
        child = f"{self._node.name}.{name}"
        if needs:
            node_graph.attach(self._engine, (f"{self._node.name}.{need}" for need in sorted(needs)), child)
        else:
            self._node.children.append(child)

    def _skip(self, task: Mapping[str, Any], phase: Phase, message: str, now: float) -> None:
        self._engine.factory.skip(self._task_call(task, "", self._node.name), phase, message, now)
        self._attach(str(task["name"]))

    def _start_task(self, name: str, now: float) -> None:
        """Start a task whose dependencies have ended: run it, skip it, or record why it cannot run."""
        task = self._tasks[name]
        try:
            if self._depends[name] and not is_satisfied(
                self._depends[name], {n: self._depends_states(n) for n in self._needs[name]}
            ):
                self._skip(task, Phase.OMITTED, "omitted: depends condition not met", now)
                return
            scope = self.scope(task, now)
            resolved_task = self._resolve_task(task, scope)
        except ExpressionError as error:
            self._skip(task, Phase.ERROR, str(error), now)
            return
        if is_loop(resolved_task):
            self._start_loop(task, resolved_task, scope, now)
        else:
            self._call_task(resolved_task, "", self._node.name, now)
            self._attach(name)

    def _resolve_task(self, task: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
        """The task with its tags replaced; its arguments are dropped when `when` already evaluates to false."""
        when = substitute(str(task.get("when") or ""), scope, strict=True)
        body = {key: value for key, value in task.items() if key not in ("hooks", "arguments", "when", "inline")}
        deferred_fields = {key: task[key] for key in ("hooks", "inline") if key in task}
        body = {**substitute(body, scope, strict=not is_loop(task)), **deferred_fields, "when": when}
        if when and not is_loop(task) and "{{" not in when and not should_run(when):
            return {**body, "arguments": {}, "left out": True}
        body["arguments"] = resolve_arguments(task, scope)
        if tag := first_unset({"when": when, "arguments": body["arguments"]["parameters"], **{
                kind: body.get(kind) for kind in ("withParam", "withSequence")}}, "tasks."):  # fmt: skip
            raise ExpressionError(NEVER.format(tag))
        body["arguments"]["artifacts"] = self._resolve_artifacts(task, scope)
        return body

    def _resolve_artifacts(self, task: Mapping[str, Any], scope: Scope) -> list[dict[str, Any]]:
        if not (task.get("arguments") or {}).get("artifacts"):
            return []
        artifacts = {**input_artifacts(self._node.spec), **self._engine.variables.artifacts}
        for ancestor in self._readable_tasks(str(task["name"]), artifact_names_read(task)):
            artifacts |= node_artifacts(f"tasks.{ancestor}", self._engine.state.nodes[f"{self._node.name}.{ancestor}"])
        return resolve_artifacts(task, scope, artifacts)

    def _call_task(self, task: Mapping[str, Any], suffix: str, owner: str, now: float) -> None:
        """Call a task's template, once or for one item of its loop."""
        call = self._task_call(task, suffix, owner)
        when = str(task.get("when") or "")
        try:
            if when and not should_run(when):
                self._engine.factory.skip(call, Phase.SKIPPED, f"when '{when}' evaluated false", now)
                return
        except ExpressionError as error:
            self._engine.factory.skip(call, Phase.ERROR, str(error), now)
            return
        self._engine.hooks.register(call, task, f"tasks.{task['name']}", self)
        self._engine.call_task(call, task, now)

    def _start_loop(self, task: Mapping[str, Any], resolved_task: Mapping[str, Any], scope: Scope, now: float) -> None:
        try:
            items = expand_loop(
                resolved_task, {**self._engine.variables.global_scope(now)}, self._engine.state.remaining_nodes()
            )
        except ExpressionError as error:
            self._skip(task, Phase.ERROR, str(error), now)
            return
        if not items:
            self._skip(task, Phase.SKIPPED, "Skipped, empty params", now)
            return
        name = str(task["name"])
        group = self._engine.factory.add_group(
            f"{self._node.name}.{name}", name, NodeType.TASK_GROUP, self._node, self._node.name, task, now
        )
        self._attach(name)
        turns = [(f"{group.name}{item.suffix}", item) for item in items]
        group.children = [turn for turn, _ in turns]
        self._engine.manage(group, LoopRun(self._engine, group, len(items)), now)
        for _, item in turns:
            self._call_task(item.task, item.suffix, group.name, now)

    def _depends_states(self, name: str) -> dict[str, bool]:
        node = self._engine.state.nodes[f"{self._node.name}.{name}"]
        phase = "Errored" if node.phase is Phase.ERROR else node.phase.value
        states = {"Daemoned" if node.daemoned else phase: True}
        if node.type is NodeType.TASK_GROUP:
            phases = [self._engine.state.nodes[child].phase for child in node.children]
            states["AnySucceeded"] = Phase.SUCCEEDED in phases
            states["AllFailed"] = all(child_phase is Phase.FAILED for child_phase in phases)
        return states

    def scope(self, task: Mapping[str, Any], now: float) -> Scope:
        """The scope of a task: globals, the DAG's inputs, and the ancestors that the task names."""
        scope = {**self._engine.variables.global_scope(now), **template_scope(self._node.spec)}
        for ancestor in self._readable_tasks(str(task["name"]), names_read(task)):
            scope |= self._task_scope(ancestor)
        return scope

    def _readable_tasks(self, own: str, read: Collection[str]) -> Collection[str]:
        """The ancestors of a task that are named in `read`."""
        tasks = tasks_read("tasks", read, self._tasks)
        if tasks is self._tasks:
            return self._ancestors.ancestors(own)
        return [ancestor for ancestor in tasks if self._ancestors.is_ancestor(own, ancestor)]

    def _task_scope(self, name: str) -> Scope:
        """What other tasks may read of a task; empty before it has a node."""
        node = self._engine.state.nodes.get(f"{self._node.name}.{name}")
        if node is None:
            return {}
        prefix = f"tasks.{name}"
        scope = node_scope(
            prefix, node, self._engine.state.name, self._engine.state.declared_outputs(self._tasks[name], self._node)
        )
        if node.type is NodeType.TASK_GROUP:
            if name not in self._lists:
                self._lists[name] = loop_outputs(prefix, (self._engine.state.nodes[child] for child in node.children))
            scope |= self._lists[name]
        return scope

    def _finish_if_done(self, now: float) -> None:
        if self._open or self._node.phase.fulfilled:
            return
        engine, node = self._engine, self._node
        try:
            scope = {**engine.variables.global_scope(now), **template_scope(node.spec)}
            artifacts_by_name: dict[str, dict[str, Any]] = {}
            phase = self._phase()
            declared_outputs = node.spec.get("outputs") or {}
            for name in self._tasks if declared_outputs else [n for n in self._tasks if self._is_loop(n)]:
                scope |= self._task_scope(name)
                if (child := engine.state.nodes.get(f"{node.name}.{name}")) is not None:
                    artifacts_by_name |= node_artifacts(f"tasks.{name}", child)
            if not phase.bad and declared_outputs:
                node.outputs = outputs.template_outputs(node.spec, scope, artifacts_by_name)
        except ExpressionError as error:
            engine.set_phase(node, Phase.ERROR, now, str(error), error_raised=str(error))
            return
        self._set_outbound()
        engine.set_phase(node, phase, now)

    def _is_loop(self, name: str) -> bool:
        node = self._engine.state.nodes.get(f"{self._node.name}.{name}")
        return node is not None and node.type is NodeType.TASK_GROUP

    def _set_outbound(self) -> None:
        names = [f"{self._node.name}.{target}" for target in self._targets]
        self._node.outbound = [
            end
            for name in names
            if name in self._engine.state.nodes
            for end in node_graph.outbound_names(self._engine.state.nodes, name)
        ]

    def _phase(self) -> Phase:
        """The DAG's phase by its targets: with failFast the first bad one by name decides, without it the last."""
        names = {f"{self._node.name}.{target}": target for target in self._targets}
        phases = node_graph.branch_phases(self._engine.state.nodes, self._node, set(names))
        outcome = Phase.SUCCEEDED
        for name, target in names.items():
            phase = phases.get(name, Phase.SUCCEEDED)
            goes_on = self._tasks[target].get("continueOn") or {}
            if phase.bad and not goes_on.get("error" if phase is Phase.ERROR else "failed"):
                outcome = phase
                if self._node.spec["dag"].get("failFast", True):
                    break
        return outcome


class LoopRun:
    """The items of a task's loop, grouped by a node of type TaskGroup."""

    def __init__(self, engine: Scheduler, node: Node, turns: int) -> None:
        self._engine = engine
        self._node = node
        self._open = turns

    def begin(self, now: float) -> None:
        """Do nothing: the DAG has already called all items."""

    def on_child_end(self, child: Node, now: float) -> None:
        """An item has ended. After the last item, the last failed one gives the group its phase."""
        engine = self._engine
        error_raised = engine.state.raised.pop(child.name, "")
        if error_raised and child.phase is Phase.ERROR:
            child.message = f"task '{child.name}' errored: {error_raised}"
        self._open -= 1
        if self._open:
            return
        bad = [phase for name in self._node.children if (phase := engine.state.nodes[name].phase).bad]
        engine.set_phase(self._node, bad[-1] if bad else Phase.SUCCEEDED, now)
