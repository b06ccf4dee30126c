"""Rank order by the network: nodes under one access switch get adjacent ranks (DLRover's `topology_config`)."""

from collections.abc import Sequence

from runtime.job.nodes import NodeState


def switches(lines: Sequence[str]) -> dict[str, str]:
    """The access switch of each ip; of lines `access-switch pod-switch ip`."""
    return {ip: switch for switch, _, ip in (line.split() for line in lines)}


def ordered(nodes: Sequence[NodeState], switch_of: dict[str, str], first: str | None = None) -> list[NodeState]:
    """The nodes in rank order: those under the switch `first` (of the first node, if not given) in front, then the
    others, switch by switch as they were given. Nodes that the topology does not know count as under one more switch.
    """
    if not switch_of:
        return list(nodes)
    groups: dict[str, list[NodeState]] = {first: []} if first is not None else {}
    for node in nodes:
        groups.setdefault(switch_of.get(node.ip, ""), []).append(node)
    return [node for group in groups.values() for node in group]
