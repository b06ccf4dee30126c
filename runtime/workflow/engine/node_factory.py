"""From a call to its node: inputs, locks, memoized outputs, retries, then the node of the template's kind."""

import re
from collections.abc import Mapping
from typing import Any

from everstep.runtime.workflow.engine import gates, node_completion
from everstep.runtime.workflow.engine.dag import DagRun
from everstep.runtime.workflow.engine.gates import GateResult, Memo
from everstep.runtime.workflow.engine.nodes import TOO_MANY_NODES, Node, NodeType, Outputs, Phase
from everstep.runtime.workflow.engine.retries import RetryRun
from everstep.runtime.workflow.engine.run_state import Gate
from everstep.runtime.workflow.engine.scheduler import Scheduler
from everstep.runtime.workflow.engine.steps import StepsRun
from everstep.runtime.workflow.engine.template_call import Call, ConfigMapError, prepare_template, template_scope
from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.expressions.tags import substitute
from everstep.runtime.workflow.manifest.fields import PODS, PROCESSES, kind_of
from everstep.runtime.workflow.manifest.patch import apply_patch
from everstep.runtime.workflow.manifest.schema import UNSUPPORTED

MAX_DEPTH = 100
"""How deep templates may call each other."""
TOO_DEEP = (
    "Maximum recursion depth exceeded. See https://argo-workflows.readthedocs.io/en/release-4.1/scaling/"
    "#maximum-recursion-depth"
)
SHOWN, SHOWN_AS = "workflows.argoproj.io/display-name", re.compile(r"[a-zA-Z0-9][a-zA-Z0-9-.]{0,61}[a-zA-Z0-9]")
"""The annotation that gives a template's nodes another display name, and the pattern of such names."""
TYPES = {"dag": NodeType.DAG, "steps": NodeType.STEPS, "suspend": NodeType.SUSPEND, "http": NodeType.HTTP}


class NodeFactory:
    """Makes the nodes of one run."""

    def __init__(self, engine: Scheduler) -> None:
        self._engine = engine

    def start(self, call: Call, now: float) -> None:
        """Make the node of a call, once its locks are held and its memo was looked up."""
        if call.exits:
            self._engine.state.exits.add(call.name)
        if self._depth(call) + 1 >= MAX_DEPTH:
            self.skip(call, Phase.ERROR, TOO_DEEP, now)
            return
        if self._engine.state.remaining_nodes() <= 0:
            self.skip(
                call,
                Phase.ERROR,
                f"{TOO_MANY_NODES} none is left for {call.display_name}",
                now,
                error_raised=TOO_MANY_NODES,
            )
            return
        kind = kind_of(call.template)
        if kind not in (*PROCESSES, "dag", "steps", "suspend"):
            # A name that is made while the workflow runs: lint could not see which template it is.
            wrong = f"{kind or 'a template without a kind'}: {UNSUPPORTED}"
            self.skip(call, Phase.ERROR, wrong, now, error_raised=wrong)
            return
        leaf = {} if kind in ("dag", "steps") else {"pod.name": self._engine.variables.pod_name(call)}
        scope = {**call.scope, **leaf, "node.name": call.name, "steps.name": call.display_name if call.boundary else "",
                 "tasks.name": call.display_name if call.boundary else ""}  # fmt: skip
        try:
            spec = prepare_template(
                call._replace(scope=scope),
                self._engine.variables.global_scope(now),
                self._engine.state.manifest.library,
            )
        except ExpressionError as error:
            silent = isinstance(error, ConfigMapError) and isinstance(
                self._engine.state.composites.get(call.owner), DagRun
            )
            self.skip(call, Phase.ERROR, str(error), now, error_raised="" if silent else str(error))
            return
        display_name = (spec.get("annotations") or {}).get(SHOWN)
        if display_name and not SHOWN_AS.fullmatch(display_name):
            wrong = f"displayName must match the regex ^{SHOWN_AS.pattern}$"
            self.skip(call, Phase.ERROR, wrong, now, error_raised=wrong)
            return
        self._wait_for_locks(call, kind, spec, now)

    def _wait_for_locks(self, call: Call, kind: str, spec: dict[str, Any], now: float) -> None:
        """Wait for the template's locks, if it declares any, and anything of the call is to run."""
        engine = self._engine
        kept_node = engine.state.kept.get(call.name)
        is_done = call.name in engine.state.settled or (kept_node is not None and not kept_node.memo_hit)
        try:
            locks = gates.declared_locks(spec, engine.variables.namespace, engine.state.manifest.library)
        except ExpressionError as error:
            self.skip(call, Phase.ERROR, str(error), now, error_raised=str(error))
            return
        if not locks or call.scope.get("retries") or is_done:
            self._look_up_memo(call, kind, spec, now)
        elif engine.state.is_stopped(call):
            self.skip(call, Phase.FAILED, engine.state.stop_message(), now)
        else:
            engine.wait_for_gate(
                Gate(call.name, locks=locks, call=call, then=lambda _, at: self._look_up_memo(call, kind, spec, at))
            )

    def _look_up_memo(self, call: Call, kind: str, spec: dict[str, Any], now: float) -> None:
        """Look for memoized outputs, if the template asks for them."""
        try:
            memo = gates.declared_memo(spec)
        except ExpressionError as error:
            self.skip(call, Phase.ERROR, str(error), now, error_raised=str(error))
            return
        if memo and not call.scope.get("retries"):

            def then(gate: GateResult, at: float) -> None:
                self._proceed(call, kind, spec, at, memo, gate)

            self._engine.wait_for_gate(Gate(call.name, memo=memo, then=then, call=call))
        else:
            self._proceed(call, kind, spec, now)

    def _proceed(self, call: Call, kind: str, spec: dict[str, Any], now: float, memo: Memo | None = None,
                 gate: GateResult | None = None) -> None:  # fmt: skip
        if memo and gate and gate.hit:
            node = self._add_node(call, TYPES.get(kind, NodeType.POD), Phase.RUNNING, spec, now)
            node.memo, node.memo_hit = (memo.cache, memo.key), True
            node.outputs = Outputs(gate.parameters, gate.artifacts, gate.result, "0" if kind in PODS else "")
            if kind in PODS:  # The outputs of steps and DAGs are exported where a DAG calls them, as on Argo.
                self._engine.variables.export(node)
            self._engine.set_phase(node, Phase.SUCCEEDED, now)
            return
        strategy = spec.get("retryStrategy", self._engine.state.manifest.spec.get("retryStrategy"))
        if strategy is not None and not call.scope.get("retries"):
            self._make_retry(call, {**spec, "retryStrategy": strategy}, now)
        else:
            self._make_node(call, kind, spec, now)
        if memo:
            self._engine.state.nodes[call.name].memo = (memo.cache, memo.key)

    def _make_retry(self, call: Call, spec: dict[str, Any], now: float) -> None:
        node = self._add_node(call, NodeType.RETRY, Phase.RUNNING, spec, now)
        self._engine.manage(node, RetryRun(self._engine, node, call), now)

    def _make_node(self, call: Call, kind: str, spec: dict[str, Any], now: float) -> None:
        engine = self._engine
        kept_node = engine.state.kept.get(call.name)
        if kept_node is not None and kind in (*PROCESSES, "suspend"):
            self._restore_node(kept_node)
            self._engine.notify_owner(call.name)
            self._engine.limits.on_node_end(kept_node)
            return
        phase = Phase.PENDING if kind in PROCESSES else Phase.RUNNING
        node = self._add_node(call, TYPES.get(kind, NodeType.POD), phase, spec, now)
        if kind in ("dag", "steps"):
            self._engine.manage(
                node, DagRun(self._engine, node) if kind == "dag" else StepsRun(self._engine, node), now
            )
            return
        node.captures = self._engine.variables.is_result_read(node)
        if kind in PODS:
            try:
                node.spec = self._apply_patches(call, spec, now)
            except ExpressionError as error:
                self._engine.set_phase(node, Phase.ERROR, now, str(error), error_raised=str(error))
                return
        node_completion.begin_leaf(self._engine, node, now)
        self._engine.notify_owner(call.name)

    def _apply_patches(self, call: Call, spec: dict[str, Any], now: float) -> dict[str, Any]:
        """The template of a pod with the workflow's podSpecPatch over it, and its own over that."""
        patch_scope = {**self._engine.variables.global_scope(now), "pod.name": self._engine.variables.pod_name(call)}
        for patch in filter(None, (self._engine.state.manifest.spec.get("podSpecPatch"), spec.get("podSpecPatch"))):
            spec = apply_patch(
                spec, str(substitute(substitute(patch, patch_scope), {**patch_scope, **template_scope(spec)}))
            )
        return spec

    def _restore_node(self, node: Node) -> None:
        """Take over a node that ended in an earlier life, with its containers; other children are attached again."""
        self._engine.variables.export(node)
        queue = [node]
        for restored in queue:
            below = [kept_child for name in restored.children if (kept_child := self._engine.state.kept.get(name))]
            below = [
                kept_child
                for kept_child in below
                if kept_child.type is NodeType.CONTAINER and kept_child.owner == node.name
            ]
            restored.children = [child.name for child in below]
            self._engine.state.nodes[restored.name] = restored
            queue += below

    def _add_node(self, call: Call, type_: NodeType, phase: Phase, spec: dict[str, Any], now: float) -> Node:
        inputs = {key: value for key, value in (spec.get("inputs") or {}).items() if value}
        title = str(call.template.get("name") or "") if call.title is None else call.title
        display_name = "" if call.scope.get("retries") else (spec.get("annotations") or {}).get(SHOWN)
        life = self._engine.state.lives
        node = Node(
            call.name, display_name or call.display_name, type_, title, call.boundary, phase, now, call.owner,
            inputs=inputs, home=call.home, hooked=call.hooked, spec=spec, template_ref=dict(call.reference), life=life,
            children=[], outbound=[],
        )  # fmt: skip
        self._engine.add_node(node)
        return node

    def add_group(self, name: str, display: str, type_: NodeType, boundary: Node, owner: str,
              task: Mapping[str, Any], now: float) -> Node:  # fmt: skip
        """Add a node that only groups others: a StepGroup, or the TaskGroup of a task."""
        run = self._engine.state
        node = Node(name, display, type_, run.manifest.template_name(task), boundary.name, Phase.RUNNING, now,
                    owner, template_ref=task.get("templateRef") or {}, life=run.lives, children=[],
                    outbound=[])  # fmt: skip
        self._engine.add_node(node)
        return node

    def add_container_node(self, pod: Node, name: str, now: float) -> None:
        """Add a node for a container of a containerSet; it runs and ends with its pod."""
        self._engine.state.nodes[f"{pod.name}.{name}"] = Node(
            f"{pod.name}.{name}", name, NodeType.CONTAINER, pod.template, pod.name, Phase.RUNNING, now, pod.name,
            life=self._engine.state.lives, children=[], outbound=[],
        )  # fmt: skip

    def skip(self, call: Call, phase: Phase, message: str, now: float, error_raised: str = "") -> None:
        """Add a node for which nothing runs: skipped, omitted, or in error before it could begin.

        `raised`: an error that the owner has to handle, too.
        """
        title = str(call.template.get("name") or "") if call.title is None else call.title
        node = Node(
            call.name, call.display_name, NodeType.SKIPPED, title, call.boundary, phase, now, call.owner,
            message=message, finished=now, hooked=call.hooked, template_ref=dict(call.reference),
            life=self._engine.state.lives, children=[], outbound=[],
        )  # fmt: skip
        self._engine.add_node(node)
        if error_raised:
            self._engine.state.raised[call.name] = error_raised
        self._engine.notify_owner(call.name)
        self._engine.limits.on_node_end(node)

    def _depth(self, call: Call) -> int:
        depth, name = 0, call.boundary
        while name:
            depth, name = depth + 1, self._engine.state.nodes[name].boundary
        return depth
