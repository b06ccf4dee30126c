"""Rank order by network topology: nodes under one access switch get adjacent ranks.

Lines `asw-0 psw-0 192.168.0.0` (access switch, pod switch, the node's IP): the key `topology_config` of DLRover's
ConfigMap `node-topology-config`.
"""

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


class TopologyError(ValueError):
    """A line cannot be parsed: `NUMBER: what is wrong`."""


def switches(lines: Iterable[str]) -> dict[str, str]:
    """The access switch of each IP. Skips empty lines and `#` comments. Raises TopologyError."""
    switch_by_ip: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 3:
            raise TopologyError(
                f"{number}: {len(words)} words; write ACCESS-SWITCH POD-SWITCH IP: asw-0 psw-0 192.168.0.0"
            )
        try:
            ip = str(ipaddress.ip_address(words[2]))
        except ValueError:
            raise TopologyError(f"{number}: {words[2]!r} is not an IP address") from None
        if ip in switch_by_ip:
            raise TopologyError(f"{number}: {ip} is also in an earlier line")
        switch_by_ip[ip] = words[0]
    return switch_by_ip


def order_by_switch(nodes: Sequence[T], switch_of: Callable[[T], str], first: str | None = None) -> list[T]:
    """The nodes in rank order: first those under the switch `first` (default: that of the first node), then the others
    by switch in the given order. Nodes without a known switch ("") form a group of their own.
    """
    groups: dict[str, list[T]] = {first: []} if first is not None else {}
    for node in nodes:
        groups.setdefault(switch_of(node), []).append(node)
    return [node for group in groups.values() for node in group]
