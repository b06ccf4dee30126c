"""The graph of nodes as Argo draws it: children, and the outbound nodes to which the next nodes are attached."""

from collections.abc import Iterable, Mapping

from everstep.runtime.workflow.engine.nodes import Node, NodeType, Phase
from everstep.runtime.workflow.engine.scheduler import Scheduler


def outbound_names(nodes: Mapping[str, Node], name: str) -> list[str]:
    """Names of the nodes at which a node ends, to which its successors are attached."""
    node = nodes[name]
    if node.type is NodeType.TASK_GROUP:
        return [end for child in node.children for end in outbound_names(nodes, child)] if node.children else [name]
    if node.type is NodeType.RETRY:
        return [node.children[-1]] if node.children else [name]
    if node.type in (NodeType.POD, NodeType.CONTAINER):
        inner = [child for child in node.children if nodes[child].type is NodeType.CONTAINER]
        return sorted({end for child in inner for end in outbound_names(nodes, child)}) if inner else [name]
    if node.type in (NodeType.STEPS, NodeType.DAG):
        return [end for outbound in node.outbound for end in outbound_names(nodes, outbound)]
    return [name]


def attach(engine: Scheduler, above: Iterable[str], name: str) -> None:
    """Make a node a child of the outbound nodes of some others."""
    for parent in above:
        for end in outbound_names(engine.state.nodes, parent):
            engine.state.nodes[end].children.append(name)


def branch_phases(nodes: Mapping[str, Node], boundary: Node, targets: set[str]) -> dict[str, Phase]:
    """The phase that counts for each target: an omitted node inherits its parents' phase, a failed one first."""
    phases: dict[str, Phase] = {}
    visited: set[tuple[str, Phase]] = set()
    queue = [(child, Phase.SUCCEEDED) for child in boundary.children]
    for name, branch in queue:
        if (name, branch) in visited:
            continue
        visited.add((name, branch))
        node = nodes[name]
        phase = branch if node.phase is Phase.OMITTED else node.phase
        if name in targets and not phases.get(name, Phase.SUCCEEDED).bad:
            phases[name] = phase
        children = node.children
        if node.type in (NodeType.RETRY, NodeType.TASK_GROUP) and node.children:
            children = [below for child in node.children for below in nodes[child].children]
            if node.type is NodeType.RETRY:
                children = nodes[node.children[-1]].children
        queue += [(child, phase) for child in children]
    return phases
