"""Hooks of tasks and steps. `exit` runs after the end, others when their expression holds; the task waits for them."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from everstep.runtime.workflow.engine.nodes import Node, Phase
from everstep.runtime.workflow.engine.scheduler import HookOwner, Scheduler
from everstep.runtime.workflow.engine.scope import Scope, output_scope
from everstep.runtime.workflow.engine.template_call import Call
from everstep.runtime.workflow.expressions import ExpressionError, dotted_paths, holds
from everstep.runtime.workflow.expressions.tags import FUNCTIONS, names_read, substitute


class Hooks:
    """The hooks of all nodes of a run."""

    def __init__(self, engine: Scheduler) -> None:
        self._engine = engine
        self._runs: dict[str, HookRun] = {}

    def register(self, call: Call, task: Mapping[str, Any], prefix: str, owner: HookOwner) -> None:
        """Remember the hooks of a task or step whose node is about to be made."""
        hooks = dict(task.get("hooks") or {})
        if task.get("onExit"):
            hooks.setdefault("exit", {"template": task["onExit"]})
        if hooks:
            run = HookRun(self._engine, call, hooks, prefix, owner)
            self._runs[call.name] = self._engine.state.composites[run.key] = run

    def start_due(self, node: Node, now: float) -> bool:
        """Start the hooks that are due now that the node has changed. False while a started hook is running."""
        run = self._runs.get(node.name)
        return run is None or run.start_due(node, now)


class HookRun:
    """The hooks of one node."""

    def __init__(
        self, engine: Scheduler, call: Call, hooks: Mapping[str, Mapping[str, Any]], prefix: str, owner: HookOwner
    ) -> None:
        self._engine = engine
        self._call = call
        self._hooks = hooks
        self._prefix = prefix
        self._hook_owner = owner
        self._started: dict[str, str] = {}
        self.key = f"{call.name}.hooks"
        self._read = names_read(hooks)
        for expression in filter(None, (hook.get("expression") for hook in hooks.values())):
            with suppress(ExpressionError):  # It is reported when the hook is due.
                self._read |= dotted_paths(str(expression))

    def begin(self, now: float) -> None:
        """Do nothing: hooks start when their node changes."""

    def start_due(self, node: Node, now: float) -> bool:
        """Start the hooks that are due. True when no started hook is running."""
        scope = {**self._hook_owner.hook_scope(self._read, now), f"{self._prefix}.status": node.phase.value}
        for name, hook in self._hooks.items():
            if name == "exit" or name in self._started:
                continue
            try:
                if not hook.get("expression"):
                    raise ExpressionError(f"Expression required for hook {node.name}.hooks.{name}")
                if holds(str(hook["expression"]), scope, FUNCTIONS):
                    self._start(node, f"hooks.{name}", hook, scope, now)
                    self._started[name] = f"{node.name}.hooks.{name}"
            except ExpressionError as error:
                self._hook_owner.fail(str(error), now)
                return False
        ran = node.phase.fulfilled and node.phase not in (Phase.SKIPPED, Phase.OMITTED)
        if ran and "exit" in self._hooks and "exit" not in self._started and self._engine.state.shutdown != "Terminate":
            self._started["exit"] = f"{node.name}.onExit"
            try:
                self._start(node, "onExit", self._hooks["exit"], scope, now)
            except ExpressionError as error:
                self._hook_owner.fail(str(error), now)
                return False
        hook_nodes = (self._engine.state.nodes.get(name) for name in self._started.values())
        return all(hook_node is not None and hook_node.phase.fulfilled for hook_node in hook_nodes)

    def _start(self, node: Node, suffix: str, hook: Mapping[str, Any], scope: Scope, now: float) -> None:
        if not node.outputs.is_empty:
            # Argo takes the exit code of a hook's task only from the outputs.
            hook_scope = {
                key: value for key, value in output_scope(self._prefix, node).items() if not key.endswith(".exitCode")
            }
            scope = {key: value for key, value in scope.items() if key != f"{self._prefix}.exitCode"}
            hook = {**hook, "arguments": substitute(hook.get("arguments") or {}, {**scope, **hook_scope})}
        name = f"{node.name}.{suffix}"
        call = Call(
            name, f"{self._call.display_name}.{suffix}", {}, {}, node.boundary, self.key, hooked=True,
            exits=suffix == "onExit", title=self._engine.state.manifest.template_name(hook),
            reference=hook.get("templateRef") or {},
        )  # fmt: skip
        node.children.append(name)
        self._engine.call_task(call, hook, now)

    def on_child_end(self, child: Node, now: float) -> None:
        """A hook has ended; its phase does not matter."""
        self._engine.state.raised.pop(child.name, "")
        self._engine.notify_owner(self._call.name)
