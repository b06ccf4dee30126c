"""Rules of policy routing that lose packets, in the network namespace of this process, by rtnetlink.

After rtnetlink(7), the kernel's linux/fib_rules.h and ip-rule(8). A rule that says "unreachable" before any route is
looked up loses what established connections send without a word, as any change of the rules makes the kernel look up
cached routes again; who connects meanwhile gets ENETUNREACH. (With "blackhole" that would be EINVAL, which programs
take for a mistake of their own.) It needs CAP_NET_ADMIN, and no module of the kernel.
"""

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

FAMILIES = (socket.AF_INET, socket.AF_INET6)
_NEW, _DELETE = 32, 33
_REQUEST_WITH_ANSWER, _NEW_ONLY = 0x1 | 0x4, 0x200 | 0x400
_TO_TABLE, _UNREACHABLE = 1, 7
_INVERT = 2
_TO, _IN_INTERFACE, _PRIORITY, _TABLE, _PROTOCOL, _TO_PORTS = 1, 3, 6, 15, 22, 24
_LOCAL = 255
"""The table with this namespace's own addresses; its rule is the kernel's first, of priority 0."""


@dataclass(frozen=True)
class Rule:
    """`ip rule add priority PRIORITY [not iif lo] [to ADDRESS ipproto tcp dport PORT] lookup local | unreachable`."""

    family: int
    priority: int
    local: bool = False
    """Look up the table of own addresses; otherwise the packet is lost."""
    from_outside: bool = False
    """Only what comes in by an interface other than lo."""
    address: str = ""
    """Only what goes there; empty: anywhere."""
    port: int = 0
    """TCP's, with an address."""

    def add(self) -> None:
        """Raises OSError."""
        _ask(_NEW, _NEW_ONLY, self._message())

    def delete(self) -> None:
        """Raises OSError."""
        _ask(_DELETE, 0, self._message())

    def _message(self) -> bytes:
        to = ipaddress.ip_address(self.address).packed if self.address else b""
        action, flags = _TO_TABLE if self.local else _UNREACHABLE, _INVERT if self.from_outside else 0
        header = struct.pack(
            "=BBBBBBBBI", self.family, 8 * len(to), 0, 0, _LOCAL if self.local else 0, 0, 0, action, flags
        )
        attributes = [(_PRIORITY, struct.pack("=I", self.priority))]
        if self.local:
            attributes.append((_TABLE, struct.pack("=I", _LOCAL)))
        if self.from_outside:
            attributes.append((_IN_INTERFACE, b"lo\0"))
        if to:
            attributes.append((_TO, to))
        if self.port:
            attributes.append((_PROTOCOL, bytes([socket.IPPROTO_TCP])))
            attributes.append((_TO_PORTS, struct.pack("=HH", self.port, self.port)))
        return header + b"".join(_attribute(kind, value) for kind, value in attributes)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _ask(kind: int, flags: int, message: bytes) -> None:
    """Send one request to the kernel. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        header = struct.pack("=IHHII", 16 + len(message), kind, _REQUEST_WITH_ANSWER | flags, 1, 0)
        kernel.sendto(header + message, (0, 0))
        (negative,) = struct.unpack_from("=i", kernel.recv(65536), 16)
    if negative:
        raise OSError(-negative, os.strerror(-negative))


@contextmanager
def everything_lost() -> Iterator[None]:
    """No packet leaves or enters this network namespace; its processes still reach each other. Raises OSError."""
    with ExitStack() as undo:
        for family in _families():
            first = Rule(family, 0, local=True)
            _add(undo, Rule(family, 2, local=True))
            _add(undo, Rule(family, 3))
            _add(undo, Rule(family, 1, from_outside=True))
            first.delete()
            undo.callback(first.add)
        yield


@contextmanager
def lost(addresses: Sequence[str], port: int) -> Iterator[None]:
    """No packet of this network namespace gets to that TCP port of these addresses. Raises OSError."""
    with ExitStack() as undo:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            _add(undo, Rule(family, 1, address=address, port=port))
        yield


def _add(undo: ExitStack, rule: Rule) -> None:
    rule.add()
    undo.callback(rule.delete)


def _families() -> Iterator[int]:
    """Those that this kernel has."""
    for family in FAMILIES:
        try:
            socket.socket(family, socket.SOCK_DGRAM).close()
        except OSError as error:
            if error.errno != errno.EAFNOSUPPORT:
                raise
        else:
            yield family
