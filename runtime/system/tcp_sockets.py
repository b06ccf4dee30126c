"""The TCP connections of this network namespace, as the kernel sees them: sock_diag(7), inet_diag.h, tcp.h."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

_NETLINK_SOCK_DIAG, _BY_FAMILY, _REQUEST_DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI48s")
_MESSAGE_BYTES, _INODE_AT = 72, 68
_ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct("=I")
_INFO = 2
_RETRANSMITS_AT, _UNACKED_AT, _RTT_AT, _TOTAL_RETRANS_AT = 2, 24, 68, 100
"""Offsets in `struct tcp_info` (tcp.h) of tcpi_retransmits, tcpi_unacked, tcpi_rtt and tcpi_total_retrans."""
_ESTABLISHED = 1 << 1


class TcpSocket(NamedTuple):
    """One connection."""

    inode: int
    remote: str
    rtt_s: float
    """Smoothed round-trip time."""
    unacked: int
    """Segments that the other end has not acknowledged."""
    repeats: int
    """How often the oldest of them was sent again."""
    resent: int
    """Segments sent again so far."""


def tcp_sockets() -> dict[int, TcpSocket]:
    """The established connections by the inodes of their sockets; empty where the kernel does not tell."""
    sockets: dict[int, TcpSocket] = {}
    with suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ESTABLISHED, bytes(48))
            kernel.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + body)
            sockets.update((connection.inode, connection) for connection in _answers(kernel, family))
    return sockets


def sockets_of(pid: int, sockets: dict[int, TcpSocket]) -> list[TcpSocket]:
    """Those of this process."""
    mine = []
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                name = os.readlink(entry.path)
                if name.startswith("socket:[") and int(name[8:-1]) in sockets:
                    mine.append(sockets[int(name[8:-1])])
    return mine


def describe_unacknowledged(sockets: list[TcpSocket]) -> str:
    """The peer that has acknowledged no segment although they were sent again, in one line; empty: there is none."""
    late = [connection for connection in sockets if connection.unacked and connection.repeats]
    if not late:
        return ""
    worst = max(late, key=lambda connection: (connection.repeats, connection.remote))
    return f"{worst.unacked} segments to {worst.remote} are not acknowledged, sent again {worst.repeats} times"


def _answers(kernel: socket.socket, family: int) -> Iterator[TcpSocket]:
    while True:
        data, at = kernel.recv(1 << 18), 0
        while at + _HEADER.size <= len(data):
            length, kind, *_ = _HEADER.unpack_from(data, at)
            if kind in (_DONE, _ERROR) or length < _HEADER.size:
                return
            yield _socket(data[at + _HEADER.size : at + length], family)
            at += -(-length // 4) * 4


def _socket(body: bytes, family: int) -> TcpSocket:
    (port,) = struct.unpack_from(">H", body, 6)
    address = socket.inet_ntop(family, body[24 : 24 + (4 if family == socket.AF_INET else 16)])
    (inode,) = _NUMBER.unpack_from(body, _INODE_AT)
    repeats = rtt_us = unacked = resent = 0
    at = _MESSAGE_BYTES
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        if kind == _INFO and length >= _ATTRIBUTE.size + _TOTAL_RETRANS_AT + _NUMBER.size:
            info = at + _ATTRIBUTE.size
            repeats = body[info + _RETRANSMITS_AT]
            (unacked,) = _NUMBER.unpack_from(body, info + _UNACKED_AT)
            (rtt_us,) = _NUMBER.unpack_from(body, info + _RTT_AT)
            (resent,) = _NUMBER.unpack_from(body, info + _TOTAL_RETRANS_AT)
        at += -(-length // 4) * 4
    name = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    return TcpSocket(inode, name, rtt_us / 1e6, unacked, repeats, resent)
