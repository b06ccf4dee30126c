"""How leaf nodes end: pods by themselves, by a deadline or by a stop; suspended nodes by a timer or a request."""

from collections.abc import Mapping
from typing import Any

from everstep.runtime.workflow.engine.containers import ContainerExit, verdict
from everstep.runtime.workflow.engine.events import INIT_FAILED, NodeSet, NodesResumed, PodEnded
from everstep.runtime.workflow.engine.nodes import Node, NodeType, Outputs, Phase
from everstep.runtime.workflow.engine.retries import RetryRun
from everstep.runtime.workflow.engine.scheduler import Scheduler
from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.expressions.values import parameter_text
from everstep.runtime.workflow.manifest.durations import DurationError, parse_int, parse_seconds
from everstep.runtime.workflow.manifest.fields import list_at

TOO_LONG = "Pod was active on the node longer than the specified deadline"
NOT_SET = "raw output parameter '{}' has not been set and does not have a default value"
GROUPS = (NodeType.DAG, NodeType.STEPS, NodeType.STEP_GROUP, NodeType.TASK_GROUP, NodeType.RETRY)


def begin_leaf(engine: Scheduler, node: Node, now: float) -> None:
    """Set the timers of a new leaf node. A timeout or deadline that cannot be read ends it with Error."""
    if node.spec.get("containerSet"):
        add_containers(engine, node, now)
    if engine.state.is_stopped(node):
        _stop_node(engine, node, now, at_once=False)
        return
    try:
        if node.spec.get("timeout"):
            engine.set_timer(now + parse_seconds(node.spec["timeout"]), "timeout", node.name)
        if node.spec.get("pendingTimeout") and parse_seconds(node.spec["pendingTimeout"]) < 0:
            _set_error(engine, node, "timeout", now)
            return
    except DurationError as error:
        _set_error(engine, node, f"invalid timeout format {error}", now)
        return
    try:
        parse_int(node.spec.get("activeDeadlineSeconds") or 0)
    except ExpressionError as error:
        _set_error(engine, node, str(error), now)
        return
    if node.type is NodeType.SUSPEND:
        declared_parameters = list_at(node.spec, "outputs", "parameters")
        node.outputs = Outputs([dict(entry) for entry in declared_parameters], [])
        if node.spec["suspend"].get("duration") is not None:
            try:
                engine.set_timer(now + parse_seconds(node.spec["suspend"]["duration"]), "suspend", node.name)
            except DurationError as error:
                _set_error(engine, node, str(error), now)


def _set_error(engine: Scheduler, node: Node, message: str, now: float) -> None:
    engine.set_phase(node, Phase.ERROR, now, message, error_raised=message)


def set_deadline(engine: Scheduler, node: Node, now: float) -> None:
    """Start the activeDeadlineSeconds of a pod that loads its inputs or runs."""
    limit = node.spec.get("activeDeadlineSeconds")
    if limit is not None:
        engine.set_timer(now + parse_int(limit), "deadline", node.name)


def handle_timeout(engine: Scheduler, node: Node, kind: str, now: float) -> None:
    """End or resume a leaf whose timer has fired."""
    if kind == "suspend":
        _resume_node(engine, node, now)
    elif node.type is NodeType.SUSPEND or node.phase is Phase.PENDING:
        engine.set_phase(node, Phase.FAILED, now, TOO_LONG)
    else:
        engine.kill(node, TOO_LONG, keeps_code=True)


def end_daemons(engine: Scheduler, boundary: Node, now: float) -> None:
    """End the daemons of a DAG or Steps node that has ended."""
    if boundary.type not in (NodeType.DAG, NodeType.STEPS):
        return
    for node in engine.state.daemons.pop(boundary.name, ()):
        if node.daemoned and not node.phase.fulfilled:
            engine.kill(node, "", keeps_code=False)
            engine.set_phase(node, Phase.SUCCEEDED, now)


def shut_down(engine: Scheduler, now: float, at_once: bool = False) -> None:
    """Stop every open node, and what waits for a lock or for its next attempt.

    Only `Terminate` stops the exit handler, too. `at_once`: without time to save anything.
    """
    state = engine.state
    for node in filter(state.is_stopped, state.open_nodes()):
        _stop_node(engine, node, now, at_once)
    for gate in list(state.gates.values()):
        if gate.call is not None and state.is_stopped(gate.call):
            del state.gates[gate.name]
            engine.factory.skip(gate.call, Phase.FAILED, state.stop_message(), now)
    for composite in list(state.composites.values()):
        if isinstance(composite, RetryRun):
            composite.end_if_stopped(now)
    stopped = f"Stopped with strategy '{state.shutdown}'" if state.shutdown else ""
    if any(gate.call is None for gate in state.gates.values()) or (engine.root.suspended and stopped):
        engine.root.finish(Phase.FAILED, stopped or state.stop_message(), now)


def _stop_node(engine: Scheduler, node: Node, now: float, at_once: bool) -> None:
    message = engine.state.stop_message()
    if node.type in (NodeType.POD, NodeType.HTTP) and node.phase is Phase.RUNNING:
        engine.kill(node, message, at_once=at_once and engine.state.shutdown == "Terminate")
        return
    if node.type is NodeType.SUSPEND and engine.state.shutdown:
        message = f"Stopped with strategy '{engine.state.shutdown}'"
    engine.set_phase(node, Phase.FAILED, now, message)


def resume_nodes(engine: Scheduler, event: NodesResumed) -> None:
    """Resume the suspended nodes that the event names, and a suspended workflow."""
    if engine.root.suspended:
        engine.root.resume(event.time)
    for name in event.nodes:
        node = engine.state.nodes[name]
        if node.type is NodeType.SUSPEND and not node.phase.fulfilled:
            if node.message and not event.chosen:
                node.message += "; "  # Argo adds the name of the user who resumed it, if it has one.
            _resume_node(engine, node, event.time)


def set_node(engine: Scheduler, event: NodeSet) -> None:
    """Give a suspended node its outputs, a message or its final phase."""
    node = engine.state.nodes[event.node]
    for entry in node.outputs.parameters:
        if entry["name"] in event.parameters:
            entry["value"] = event.parameters[entry["name"]]
    engine.variables.export(node)
    if event.phase:
        engine.set_phase(node, Phase(event.phase), event.time, event.message)
    elif event.message:
        node.message = event.message


def _resume_node(engine: Scheduler, node: Node, now: float) -> None:
    for entry in node.outputs.parameters:
        if entry.get("value") is None:
            default = (entry.get("valueFrom") or {}).get("default")
            if default is None:
                _set_error(engine, node, NOT_SET.format(entry["name"]), now)
                return
            entry["value"] = parameter_text(default)
    engine.variables.export(node)
    engine.set_phase(node, Phase.SUCCEEDED, now, node.message)


def add_containers(engine: Scheduler, node: Node, now: float) -> None:
    """Add a node for each container of a containerSet, below the pod's node or below its dependencies."""
    every = list_at(node.spec, "containerSet", "containers")
    for container in every:
        engine.factory.add_container_node(node, str(container["name"]), now)
    for container in every:
        name = f"{node.name}.{container['name']}"
        above = [engine.state.nodes[f"{node.name}.{need}"] for need in container.get("dependencies") or []]
        for parent in above or [node]:
            parent.children.append(name)


def abandon_containers(engine: Scheduler, node: Node, message: str, now: float) -> None:
    """Fail the containers of a pod that was ended from outside."""
    for container in list_at(node.spec, "containerSet", "containers"):
        below = engine.state.nodes[f"{node.name}.{container['name']}"]
        if not below.phase.fulfilled:
            below.set_phase(Phase.FAILED, now, message)


def end_containers(engine: Scheduler, node: Node, event: PodEnded) -> None:
    """Give each container node of a containerSet the phase in which its container ended."""
    codes = {name: code for name, code, _ in event.containers}
    for name, code, blamed_container in event.containers:
        below = engine.state.nodes.get(f"{node.name}.{name}")
        if below is None or below.type is not NodeType.CONTAINER or below.phase.fulfilled:
            continue
        if blamed_container:
            root_code = _root_cause_code(blamed_container, event, codes)
            why = f'dependency "{blamed_container}" exited with non-zero code: {root_code}'
            below.set_phase(Phase.ERROR, event.time, f"{name}: Error (exit code {code}): {why}")
        elif code:
            below.set_phase(Phase.FAILED, event.time, f"{name}: Error (exit code {code}): ")
        else:
            below.set_phase(Phase.SUCCEEDED, event.time)


def _root_cause_code(name: str, event: PodEnded, codes: dict[str, int]) -> int:
    """The exit code of the container that failed first in the chain of dependencies."""
    blames = {name: blamed_container for name, _, blamed_container in event.containers if blamed_container}
    while name in blames:
        name = blames[name]
    return codes[name]


def handle_pod_end(engine: Scheduler, event: PodEnded) -> None:
    """Give a node its outputs and phase: its pod has ended."""
    node = engine.state.nodes[event.node]
    kill = engine.state.kills.pop(node.name, None)
    daemoned, node.daemoned = node.daemoned, False
    if node.phase is Phase.PENDING:
        engine.set_phase(node, Phase.RUNNING, event.time)
    if kill is not None or event.exit_code is None:
        abandon_containers(engine, node, kill.message if kill else "pod deleted", event.time)
    if kill is not None and not kill.keeps_code:
        engine.set_phase(node, Phase.FAILED, event.time, kill.message)
        return
    if node.type is NodeType.HTTP:
        _end_http(engine, node, event)
        return
    phase, message = verdict(node.spec, [ContainerExit(*container) for container in event.containers])
    end_containers(engine, node, event)
    if phase and not any(name == "main" for name, _, _ in event.containers) and not node.spec.get("containerSet"):
        engine.set_phase(node, Phase(phase), event.time, message)
        return
    node.outputs = _pod_outputs(node, event)
    engine.variables.export(node)
    if kill is not None:
        engine.set_phase(node, Phase.FAILED, event.time, kill.message)
    elif event.exit_code is None:
        engine.set_phase(node, Phase.ERROR, event.time, event.error or "pod deleted")
    elif phase and (event.containers and not event.said):
        engine.set_phase(node, Phase(phase), event.time, message)
    elif event.exit_code:
        reason = f": {event.said}" if event.said else ""
        engine.set_phase(node, Phase.FAILED, event.time, f"main: Error (exit code {event.exit_code}){reason}")
    elif event.error:
        engine.set_phase(node, Phase.ERROR, event.time, event.error)
    elif daemoned:
        engine.set_phase(node, Phase.FAILED, event.time)
    else:
        engine.set_phase(node, Phase.SUCCEEDED, event.time)


def _end_http(engine: Scheduler, node: Node, event: PodEnded) -> None:
    """End the node of an http template. `said` is set where the response does not meet the success condition."""
    node.outputs = Outputs(result=event.result)
    phase = Phase.ERROR if event.error else Phase.FAILED if event.said else Phase.SUCCEEDED
    engine.set_phase(node, phase, event.time, event.error or event.said)


def _pod_outputs(node: Node, event: PodEnded) -> Outputs:
    if event.error.startswith(INIT_FAILED):  # Nothing of it has run, so there is no report of outputs.
        return Outputs()
    parameters: list[dict[str, Any]] = []
    for entry in list_at(node.spec, "outputs", "parameters"):
        has_value = entry["name"] in event.parameters
        parameters.append({**entry, "value": event.parameters[entry["name"]]} if has_value else dict(entry))
    artifacts = [
        _with_location(entry, event.artifacts[entry["name"]])
        for entry in list_at(node.spec, "outputs", "artifacts")
        if entry["name"] in event.artifacts
    ]
    code = "" if event.exit_code is None else str(event.exit_code)
    return Outputs(parameters, artifacts, event.result, code)


def _with_location(entry: dict[str, Any], key: str) -> dict[str, Any]:
    """An output artifact with its location."""
    return dict(entry) if entry.get("http") else {**entry, "s3": {**(entry.get("s3") or {}), "key": key}}


def reusable_nodes(engine: Scheduler, again: set[str], after_failures: bool) -> dict[str, Node]:
    """Leaf nodes that need not run again when a run is resumed: they succeeded, or a later attempt did.

    `again`: nodes that run again all the same, with everything below and after them. `after_failures`: so do hooks of
    what failed, and everything after it.
    """
    nodes = engine.state.nodes
    pods = {node.owner for name in again if (node := nodes[name]).type is NodeType.CONTAINER}
    anew = again | pods
    for node in nodes.values():
        if after_failures and node.phase.bad and not _has_later_success(engine, node):
            anew.update(_names_after(engine, node))
    queue = [*anew]
    for name in queue:
        # A call that a limit still held when the run ended has no node.
        more = [child for child in nodes[name].children if child not in anew] if name in nodes else []
        anew.update(more)
        queue += more
    reusable = dict(engine.state.kept)
    for node in nodes.values():
        exits = node.name.startswith(f"{engine.state.name}.onExit")
        if node.type in (NodeType.POD, NodeType.HTTP, NodeType.SUSPEND) and not exits:
            is_kept = node.phase is Phase.SUCCEEDED or _has_later_success(engine, node)
            if is_kept and node.phase.fulfilled:
                reusable[node.name] = node
        elif node.type is NodeType.CONTAINER and node.owner in reusable:
            reusable[node.name] = node
    return {name: node for name, node in reusable.items() if name not in anew}


def settled_names(engine: Scheduler, kept: Mapping[str, Node]) -> set[str]:
    """Names of groups that succeeded and in which nothing runs again when a run is resumed and keeps these leaves."""
    nodes, above_kept, above_others = engine.state.nodes, set[str](), set[str]()
    for node in nodes.values():
        if node.type in GROUPS or node.phase in (Phase.SKIPPED, Phase.OMITTED):
            continue
        names, above = above_kept if node.name in kept else above_others, nodes.get(node.name)
        while above is not None and above.name not in names:
            names.add(above.name)
            above = nodes.get(above.owner) or nodes.get(above.boundary)
    groups = {node.name for node in nodes.values() if node.type in GROUPS and node.phase is Phase.SUCCEEDED}
    return (groups & above_kept) - above_others | (engine.state.settled - nodes.keys())


def _has_later_success(engine: Scheduler, node: Node) -> bool:
    """Whether the node belongs to an attempt of a Retry node that has succeeded."""
    above = engine.state.nodes.get(node.owner)
    while above is not None:
        if above.type is NodeType.RETRY and above.phase is Phase.SUCCEEDED:
            return True
        above = engine.state.nodes.get(above.owner)
    return False


def _names_after(engine: Scheduler, node: Node) -> list[str]:
    """A node's hooks, what comes after it, a pod's containers: its children but what a group or Retry is made of."""
    if node.type not in GROUPS:
        return node.children
    children = [child for name in node.children if (child := engine.state.nodes.get(name)) is not None]
    return [child.name for child in children if node.name not in (child.owner, child.boundary)]
