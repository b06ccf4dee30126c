"""Hosts as network namespaces on one bridge, routes between them and to their pods, none out of this machine."""

from pathlib import Path

from tests.cluster.layout import BRIDGE, GATEWAY, PODS, PREFIX, SERVICES, address, host_name, pod_range
from tests.cluster.processes import output_of, works


def make_hosts(nodes: int) -> None:
    """Every host that is missing, and every route."""
    if not works("ip", "link", "show", BRIDGE):
        output_of("ip", "link", "add", BRIDGE, "type", "bridge")
        output_of("ip", "address", "add", f"{GATEWAY}/24", "dev", BRIDGE)
        output_of("ip", "link", "set", BRIDGE, "up")
    for addresses in (PODS, SERVICES):
        output_of("ip", "route", "replace", "unreachable", addresses)
    for host in range(nodes + 1):
        if not Path(f"/run/netns/{host_name(host)}").exists():
            _add(host)
    for node in range(1, nodes + 1):
        for host in (None, *range(nodes + 1)):
            if host != node:
                where = () if host is None else ("-n", host_name(host))
                output_of("ip", *where, "route", "replace", pod_range(node), "via", address(node))


def _add(host: int) -> None:
    name = host_name(host)
    output_of("ip", "netns", "add", name)
    output_of("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
    output_of("ip", "link", "set", name, "master", BRIDGE, "up")
    for words in (
        ("link", "set", "lo", "up"),
        ("address", "add", f"{address(host)}/24", "dev", "eth0"),
        ("link", "set", "eth0", "up"),
        ("route", "add", "default", "via", GATEWAY),
    ):
        output_of("ip", "-n", name, *words)
    output_of("nsenter", f"--net=/run/netns/{name}", "sysctl", "-qw", "net.ipv4.ip_forward=1")


def cut(host: int, off: bool) -> None:
    """Take the host's cable out, or put it in again."""
    output_of("ip", "link", "set", host_name(host), "down" if off else "up")


def remove_rules() -> None:
    """Nothing is left of it. A wire first: with its namespace alone it would go at some later moment."""
    for link in Path("/sys/class/net").glob(f"{PREFIX}*"):
        works("ip", "link", "delete", link.name)
    for space in Path("/run/netns").glob(f"{PREFIX}*"):
        works("ip", "netns", "delete", space.name)
    for addresses in (PODS, SERVICES):
        works("ip", "route", "delete", "unreachable", addresses)
