"""Which switch a node hangs at: lines `asw-0 psw-0 192.168.0.0` (access switch, pod switch, node's IP). Pure.

The format of the `topology_config` key in DLRover's ConfigMap `node-topology-config`. Nodes under one access switch get
adjacent ranks: the first node's switch first, the others as they come.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


class TopologyError(ValueError):
    """A line that cannot be read: names the file and the line."""


@dataclass(frozen=True)
class Place:
    """Where a node hangs."""

    access_switch: str
    pod_switch: str


def parse_topology(text: str, source: str = "topology") -> dict[str, Place]:
    """IP address -> place. Empty lines and what follows `#` are skipped. Raises TopologyError naming the line."""
    found: dict[str, Place] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 3:
            raise TopologyError(
                f"{source}:{number}: {len(words)} words; write ACCESS-SWITCH POD-SWITCH IP: asw-0 psw-0 192.168.0.0"
            )
        access, pod, address = words
        try:
            key = str(ipaddress.ip_address(address))
        except ValueError:
            raise TopologyError(f"{source}:{number}: {address!r} is not an IP address") from None
        if key in found:
            raise TopologyError(f"{source}:{number}: {address} stands in an earlier line too")
        found[key] = Place(access, pod)
    return found


def by_switch(addresses: Sequence[str], topology: Mapping[str, Place]) -> list[str]:
    """The addresses with those under one access switch side by side, each else in its order; unknown ones come last."""
    known = [address for address in addresses if address in topology]
    switches: Iterable[str] = dict.fromkeys(topology[address].access_switch for address in known)
    ordered = [address for switch in switches for address in known if topology[address].access_switch == switch]
    return ordered + [address for address in addresses if address not in topology]
