"""The workflow itself: its entrypoint, the hooks beside it, the exit handler after it, and its phase."""

from collections.abc import Mapping
from typing import Any

from everstep.runtime.workflow.engine import gates
from everstep.runtime.workflow.engine.nodes import Node, Phase
from everstep.runtime.workflow.engine.run_state import Gate
from everstep.runtime.workflow.engine.scheduler import Scheduler
from everstep.runtime.workflow.engine.scope import Scope
from everstep.runtime.workflow.engine.template_call import Call
from everstep.runtime.workflow.expressions import ExpressionError, holds
from everstep.runtime.workflow.expressions.tags import FUNCTIONS, substitute
from everstep.runtime.workflow.manifest.fields import kind_of
from everstep.runtime.workflow.manifest.library import MissingObjectError

EXIT_SUFFIX = ".onExit"


class Root:
    """The workflow of one run."""

    def __init__(self, engine: Scheduler) -> None:
        self._engine = engine
        self.phase = Phase.RUNNING
        self.message = ""
        self.suspended = bool(engine.state.manifest.spec.get("suspend"))
        self._status: Scope = {}
        self._failures = ""
        self._ended = 0.0
        self._hooks: dict[str, str] = {}

    def begin(self, now: float) -> None:
        """Start the entrypoint, or finish with the reason why it cannot start."""
        engine = self._engine
        spec = engine.state.manifest.spec
        entry = engine.state.manifest.templates.get(engine.state.manifest.entrypoint) or {}
        if kind_of(entry) == "steps" and not entry["steps"]:
            self.finish(
                Phase.FAILED, f"invalid spec: template '{engine.state.manifest.entrypoint}' type is unknown", now
            )
            return
        try:
            engine.state.manifest.library.artifact_repository(spec)
        except MissingObjectError as error:
            self.finish(Phase.ERROR, str(error), now)
            return
        if engine.variables.wrong:
            self.finish(Phase.FAILED, engine.variables.wrong, now)
            return
        if spec.get("activeDeadlineSeconds") is not None:
            engine.set_timer(engine.state.began + float(spec["activeDeadlineSeconds"]), "workflow", "")
        try:
            locks = gates.declared_locks(spec, engine.variables.namespace, engine.state.manifest.library)
        except ExpressionError as error:
            self.finish(Phase.FAILED, f"Failed to acquire the synchronization lock. {error}", now)
            return
        if locks:
            engine.wait_for_gate(Gate("", locks=locks, then=lambda _, at: self._start_unless_suspended(at)))
        else:
            self._start_unless_suspended(now)

    def _start_unless_suspended(self, now: float) -> None:
        if not self.suspended:
            self.resume(now)

    def resume(self, now: float) -> None:
        """Start the entrypoint, at once or when a suspended workflow is resumed."""
        self.suspended = False
        engine = self._engine
        call = Call(engine.state.name, engine.state.name, {}, engine.variables.arguments())
        engine.call_task(call, {"template": engine.state.manifest.entrypoint, "arguments": call.arguments}, now)
        self._start_due_hooks("Running", now)

    def status_scope(self, now: float) -> Scope:
        """`workflow.status`, `.failures` and `.duration`, once the entrypoint has ended."""
        if not self._status:
            return {}
        return {**self._status, "workflow.duration": f"{now - self._engine.state.created:f}"}

    def on_node_end(self, node: Node, now: float) -> None:
        """The entrypoint, a hook or the exit handler has ended."""
        engine = self._engine
        if engine.state.finished:
            return
        if node.name == engine.state.name and not self._ended:
            self._ended = now
            self._on_entrypoint_end(node, now)
        elif node.name == engine.state.name + EXIT_SUFFIX:
            self._finish_after_exit(node, now)
        elif self._ended:
            self._start_exit_handler(now)

    def _on_entrypoint_end(self, node: Node, now: float) -> None:
        engine = self._engine
        error_raised = engine.state.raised.pop(node.name, "")
        self.phase = {Phase.SKIPPED: Phase.SUCCEEDED, Phase.OMITTED: Phase.SUCCEEDED}.get(node.phase, node.phase)
        self.message = node.message if self.phase.bad else ""
        if engine.state.shutdown:
            self.phase, self.message = Phase.FAILED, f"Stopped with strategy '{engine.state.shutdown}'"
        elif error_raised:
            self.finish(Phase.ERROR, f"error in entry template execution: {error_raised}", now)
            return
        self._status = {"workflow.status": self.phase.value, "workflow.failures": engine.variables.failures()}
        self._start_due_hooks(self.phase.value, now)
        self._start_exit_handler(now)

    def started_hooks(self) -> list[str]:
        """The nodes of the hooks that have begun: children of the entrypoint's, which may be made later."""
        return list(self._hooks.values())

    def _start_due_hooks(self, status: str, now: float) -> None:
        """Start the hooks whose expression holds now."""
        engine = self._engine
        if engine.state.finished:
            return
        main = engine.state.nodes.get(engine.state.name)  # There is none while it waits for a lock.
        scope = {**engine.variables.global_scope(now), "workflow.status": status}
        for name, hook in (engine.state.manifest.spec.get("hooks") or {}).items():
            if name == "exit" or name in self._hooks:
                continue
            try:
                if not holds(str(hook.get("expression") or ""), scope, FUNCTIONS):
                    continue
            except ExpressionError as error:
                if main is None:
                    self.finish(Phase.ERROR, str(error), now)
                else:
                    engine.set_phase(main, Phase.ERROR, now, str(error))
                return
            self._hooks[name] = node = f"{engine.state.name}.hooks.{name}"
            self._call_hook(node, hook, scope, now)
            if main is not None:
                main.children.append(node)

    def _call_hook(self, name: str, hook: Mapping[str, Any], scope: Scope, now: float, exits: bool = False) -> None:
        title, reference = self._engine.state.manifest.template_name(hook), hook.get("templateRef") or {}
        call = Call(name, name, {}, {}, hooked=True, exits=exits, title=title, reference=reference)
        try:
            arguments = substitute(hook.get("arguments") or {}, scope)
        except ExpressionError as error:
            self._engine.factory.skip(call, Phase.ERROR, str(error), now, error_raised=str(error))
            return
        self._engine.call_task(call, {**hook, "arguments": arguments}, now)

    def _start_exit_handler(self, now: float) -> None:
        """Start the exit handler once the hooks beside the entrypoint have ended; finish if there is none."""
        engine = self._engine
        spec, name = engine.state.manifest.spec, engine.state.name + EXIT_SUFFIX
        beside = [engine.state.nodes.get(hook) for hook in self._hooks.values()]
        if name in engine.state.nodes or any(
            hook_node is None or not hook_node.phase.fulfilled for hook_node in beside
        ):
            return
        hook = (spec.get("hooks") or {}).get("exit")
        if spec.get("onExit"):
            hook = {"template": spec["onExit"], "arguments": engine.variables.arguments()}
        if hook is None or engine.state.shutdown == "Terminate":
            self.finish(self.phase, self.message, now)
            return
        if not (hook.get("arguments") or {}):
            hook = {**hook, "arguments": engine.variables.arguments()}
        self._call_hook(name, hook, engine.variables.global_scope(now), now, exits=True)

    def _finish_after_exit(self, node: Node, now: float) -> None:
        error_raised = self._engine.state.raised.pop(node.name, "")
        if error_raised and self.phase is Phase.SUCCEEDED:
            self.finish(Phase.ERROR, f"error in exit template execution : {error_raised}", now)
        elif node.phase.bad and self.phase is Phase.SUCCEEDED:
            self.finish(node.phase, node.message, now)
        else:
            self.finish(self.phase, self.message, now)

    def finish(self, phase: Phase, message: str, now: float) -> None:
        """End the workflow: no node begins any more, and none waits for a lock, which nobody would release."""
        self.phase, self.message = phase, message
        self._engine.state.finished = now
        self._engine.state.gates.clear()
