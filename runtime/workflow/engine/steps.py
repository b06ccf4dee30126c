"""A running steps template: groups run one after the other, the steps of a group side by side."""

from collections import ChainMap
from collections.abc import Collection, Mapping
from typing import Any

from everstep.runtime.workflow.engine import node_graph, outputs
from everstep.runtime.workflow.engine.loops import expand_loop, is_loop
from everstep.runtime.workflow.engine.nodes import Node, NodeType, Phase, node_id
from everstep.runtime.workflow.engine.scheduler import Scheduler
from everstep.runtime.workflow.engine.scope import Scope, loop_outputs, node_artifacts, node_scope, tasks_read
from everstep.runtime.workflow.engine.template_call import (
    FAIL_FAST,
    Call,
    first_unset,
    input_artifacts,
    resolve_arguments,
    resolve_artifacts,
    template_scope,
)
from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.expressions.govaluate import should_run
from everstep.runtime.workflow.expressions.tags import names_read, substitute

NEVER = "failed to resolve references: {{{{{}}}}} is never set; Argo would wait forever"


class StepsRun:
    """One node of type Steps."""

    def __init__(self, engine: Scheduler, node: Node) -> None:
        self.engine = engine
        self.node = node
        self._given: dict[str, Scope] = {}
        """What later steps may read of each step that has ended."""
        self._artifacts: dict[str, dict[str, Any]] = {}
        self._groups: list[Node] = []

    def fail_fast(self, now: float) -> None:
        """Fail the current group: failFast is set, a child has failed, and no child is running any more."""
        group = self._groups[-1]
        group.children = [name for name in group.children if name in self.engine.state.nodes]
        self.engine.set_phase(group, Phase.FAILED, now, FAIL_FAST)

    def begin(self, now: float) -> None:
        """Start the first group, or the next."""
        node, engine = self.node, self.engine
        index = len(self._groups)
        if index == len(node.spec["steps"]):
            self._finish(now)
            return
        group = engine.factory.add_group(
            f"{node.name}[{index}]", f"[{index}]", NodeType.STEP_GROUP, node, node.name, {}, now
        )
        above = self._groups[-1] if self._groups else None
        if above is None:
            node.children.append(group.name)
        elif above.children:
            node_graph.attach(engine, list(above.children), group.name)
        else:
            above.children.append(group.name)
        self._groups.append(group)
        engine.manage(group, GroupRun(self, group, node.spec["steps"][index] or []), now)

    def on_child_end(self, child: Node, now: float) -> None:
        """A group has ended; one that had ended before may still fail by one of its daemons."""
        if self.node.phase.fulfilled:
            return
        self.engine.state.raised.pop(child.name, "")
        if child.phase.bad:
            if child.message != FAIL_FAST:
                self._set_outbound()
            self.engine.set_phase(self.node, Phase.FAILED, now, child.message)
            return
        try:
            for step in self.node.spec["steps"][len(self._groups) - 1] or []:
                self._record_outputs(step, child)
        except ExpressionError as error:
            self.engine.set_phase(self.node, Phase.ERROR, now, str(error), error_raised=str(error))
            return
        self.begin(now)

    def _record_outputs(self, step: Mapping[str, Any], group: Node) -> None:
        """Record what later steps may read of a step."""
        engine, prefix = self.engine, f"steps.{step['name']}"
        whole = f"{group.name}.{step['name']}"
        single = engine.state.nodes.get(whole)
        if single is not None:
            self._given[step["name"]] = node_scope(
                prefix, single, engine.state.name, engine.state.declared_outputs(step, self.node)
            )
            self._artifacts |= node_artifacts(prefix, single)
            return
        turns = [engine.state.nodes[name] for name in group.children if name.startswith(f"{whole}(")]
        self._given[step["name"]] = loop_outputs(prefix, turns)

    def scope(self, read: Collection[str], now: float) -> Scope:
        """The scope of a step: globals, the template's inputs, and the earlier steps that it names."""
        scope = {**self.engine.variables.global_scope(now), **template_scope(self.node.spec)}
        for name in tasks_read("steps", read, self._given):
            scope |= self._given[name]
        return scope

    def artifacts(self) -> Mapping[str, Mapping[str, Any]]:
        """Artifacts that a step may use: of earlier steps, the workflow's outputs and the template's inputs."""
        return ChainMap(self._artifacts, self.engine.variables.artifacts, input_artifacts(self.node.spec))

    def _set_outbound(self) -> None:
        every = self._groups[-1].children if self._groups else []
        last = [name for name in every if name in self.engine.state.nodes]  # Others never began: a limit held them.
        self.node.outbound = [end for name in last for end in node_graph.outbound_names(self.engine.state.nodes, name)]

    def _finish(self, now: float) -> None:
        node = self.node
        self._set_outbound()
        try:
            if node.spec.get("outputs"):
                node.outputs = outputs.template_outputs(node.spec, self.scope(("steps",), now), self._artifacts)
        except ExpressionError as error:
            self.engine.set_phase(node, Phase.ERROR, now, str(error), error_raised=str(error))
            return
        self.engine.set_phase(node, Phase.SUCCEEDED, now)


class GroupRun:
    """One node of type StepGroup."""

    def __init__(self, steps: StepsRun, node: Node, group: list[Mapping[str, Any]]) -> None:
        self._steps = steps
        self._engine = steps.engine
        self._node = node
        self._group = group
        self._open: set[str] = set()
        self._daemons: set[str] = set()
        self._by_name: dict[str, Mapping[str, Any]] = {}

    def begin(self, now: float) -> None:
        """Start the steps of the group, up to one that cannot be started."""
        try:
            calls = list[tuple[str, Mapping[str, Any], bool]]()
            for step in self._group:
                calls += self._expand_step(
                    self._resolve_step(step, now), self._engine.state.remaining_nodes() - len(calls), now
                )
        except ExpressionError as error:
            self._engine.set_phase(self._node, Phase.ERROR, now, str(error))
            return
        self._open = {name for name, _, _ in calls}
        for name, step, empty in calls:
            if not self._start_step(name, step, empty, now):
                return
        if not calls:
            self._finish(now)

    def _resolve_step(self, step: Mapping[str, Any], now: float) -> dict[str, Any]:
        scope = self._steps.scope(names_read(step), now)
        body = {key: value for key, value in step.items() if key not in ("hooks", "arguments", "when", "inline")}
        deferred_fields = {key: step[key] for key in ("hooks", "inline") if key in step}
        try:
            when = substitute(str(step.get("when") or ""), scope, strict=True)
            body = {**substitute(body, scope, strict=not is_loop(step)), **deferred_fields, "when": when}
            if when and "{{" not in when and not should_run(when):
                return {**body, "arguments": {}}
            body["arguments"] = resolve_arguments(step, scope)
            body["arguments"]["artifacts"] = resolve_artifacts(step, scope, self._steps.artifacts())
        except ExpressionError as error:
            raise ExpressionError(f"failed to resolve references: {error}") from None
        read = {"when": when, "arguments": body["arguments"]["parameters"]}
        read |= {kind: body.get(kind) for kind in ("withParam", "withSequence")}
        if tag := first_unset(read, "steps."):
            raise ExpressionError(NEVER.format(tag))
        return body

    def _expand_step(self, step: dict[str, Any], room: int, now: float) -> list[tuple[str, Mapping[str, Any], bool]]:
        """(node's name, step, whether its loop is empty) for each item, or for the step itself."""
        name = f"{self._node.name}.{step['name']}"
        if not is_loop(step):
            return [(name, step, False)]
        items = expand_loop(step, self._engine.variables.global_scope(now), room)
        return [(f"{name}{item.suffix}", item.task, False) for item in items] or [(name, step, True)]

    def _start_step(self, name: str, step: Mapping[str, Any], empty: bool, now: float) -> bool:
        engine = self._engine
        display = name.removeprefix(f"{self._node.name}.")
        title, reference = engine.state.manifest.template_name(step), step.get("templateRef") or {}
        call = Call(name, display, {}, {}, self._steps.node.name, self._node.name, title=title, reference=reference)
        self._node.children.append(name)
        self._by_name[name] = step
        when = str(step.get("when") or "")
        try:
            if empty:
                engine.factory.skip(call, Phase.SKIPPED, "Skipped, empty params", now)
                return True
            if when and not should_run(when):
                engine.factory.skip(call, Phase.SKIPPED, f"when '{when}' evaluated false", now)
                return True
        except ExpressionError as error:
            engine.factory.skip(call, Phase.ERROR, str(error), now, error_raised=str(error))
        else:
            engine.hooks.register(call, step, f"steps.{step['name']}", self)
            engine.call_task(call, step, now)
        if error_raised := engine.state.raised.get(name):
            self._set_error(name, error_raised, now)
        return name not in engine.state.raised

    def _set_error(self, child: str, error_raised: str, now: float) -> None:
        message = f"step group deemed errored due to child {child} error: {error_raised}"
        self._engine.set_phase(self._node, Phase.ERROR, now, message)

    def hook_scope(self, read: Collection[str], now: float) -> Scope:
        """The scope of a step's hooks."""
        return self._steps.scope(read, now)

    def fail(self, message: str, now: float) -> None:
        """End the group with the error of a hook."""
        if not self._node.phase.fulfilled:
            self._engine.set_phase(self._node, Phase.ERROR, now, message)

    def on_child_end(self, child: Node, now: float) -> None:
        """A step has ended, or goes on as a daemon."""
        if self._node.phase.fulfilled:
            if child.name in self._daemons and child.phase.bad and not self._steps.node.phase.fulfilled:
                self._engine.set_phase(self._node, Phase.FAILED, now, self._failure_message(child.name))
            return
        if child.daemoned:
            self._daemons.add(child.name)
        if error_raised := self._engine.state.raised.pop(child.name, ""):
            self._set_error(child.name, error_raised, now)
            return
        self._open.discard(child.name)
        if not self._open:
            self._finish(now)

    def _finish(self, now: float) -> None:
        for name in self._node.children:
            child = self._engine.state.nodes[name]
            goes_on = self._by_name[name].get("continueOn") or {}
            if child.phase.bad and not goes_on.get("error" if child.phase is Phase.ERROR else "failed"):
                self._engine.set_phase(self._node, Phase.FAILED, now, self._failure_message(name))
                return
        self._engine.set_phase(self._node, Phase.SUCCEEDED, now)

    def _failure_message(self, name: str) -> str:
        return f"child '{node_id(self._engine.state.name, name)}' failed"
