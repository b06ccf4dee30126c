"""Rank order by network topology: nodes of one zone, under one access switch, on one machine get adjacent ranks.

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


def order_by_place(
    nodes: Sequence[T], place_of: Callable[[T], tuple[str, ...]], first: tuple[str, ...] | None = None
) -> list[T]:
    """The nodes in rank order: those of one place side by side, at each level of the place (zone, switch, machine).

    Places follow each other as their first nodes do, those of `first` (default: the first node's) before all others.
    Nodes of an unknown place ("") form a place of their own.
    """
    first_positions: dict[tuple[str, ...], int] = {}
    for place in [*([first] if first is not None else []), *map(place_of, nodes)]:
        for level in range(len(place)):
            first_positions.setdefault(place[: level + 1], len(first_positions))
    return sorted(
        nodes, key=lambda node: [first_positions[place_of(node)[: level + 1]] for level in range(len(place_of(node)))]
    )
