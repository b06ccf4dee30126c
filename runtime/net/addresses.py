"""Addresses of this machine, as the kernel's routes have them. Nothing is sent."""

import ipaddress
import socket

ELSEWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses of no machine (RFC 5737, RFC 3849): the way to them is the way to any other machine."""


def is_loopback(address: str) -> bool:
    """Is the address reachable from this machine alone?"""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def source_address(towards: str, port: int) -> str:
    """This machine's address on the route to the address `towards`. Raises OSError if there is no route."""
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, port))
        return str(probe.getsockname()[0])
