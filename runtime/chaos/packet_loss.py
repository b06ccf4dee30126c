"""All packets of some processes of this machine are dropped: a control group (v2) with a BPF program that drops.

After bpf(2) and the kernel's "BPF_PROG_TYPE_CGROUP_SKB". A socket belongs to the group in which it was made, so the
processes must enter the group before they make sockets. Nobody else's packets are touched. The link ends with the
process that holds it, so nothing stays cut off for ever.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep.runtime.chaos import groups

_BPF = {"x86_64": 321, "aarch64": 280}
"""Number of the system call."""
_PROG_LOAD, _LINK_CREATE = 5, 28
_CGROUP_SKB = 8
_INGRESS, _EGRESS = 0, 1
_DROP = bytes([0xB7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0])
"""r0 = 0; exit: a cgroup_skb program that returns 0 drops the packet."""


def refusal() -> str:
    """Why packets cannot be dropped here, in one line; empty if they can."""
    if platform.machine() not in _BPF:
        return f"packets are dropped by BPF, which is not supported on {platform.machine()}"
    if groups.find_root() is None:
        return "packets are dropped by a control group v2, and this machine has none mounted"
    try:
        os.close(_load_program())
    except OSError as error:
        return f"the kernel accepts no BPF program from this user ({error.strerror}); it needs CAP_BPF, as root has"
    try:
        groups.remove(groups.make_group("probe"))
    except OSError as error:
        return f"no control group can be made in {groups.find_root()} ({error.strerror})"
    return ""


@contextmanager
def cut_off(group: Path) -> Iterator[None]:
    """Nothing that the group's sockets send arrives, nor does anything reach them. Raises OSError."""
    folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY)
    descriptors = [folder]
    try:
        program = _load_program()
        descriptors.append(program)
        for direction in (_INGRESS, _EGRESS):
            descriptors.append(_bpf(_LINK_CREATE, struct.pack("IIII", program, folder, direction, 0)))
        yield
    finally:
        for descriptor in reversed(descriptors):
            os.close(descriptor)


def _load_program() -> int:
    code, licence = ctypes.create_string_buffer(_DROP, len(_DROP)), ctypes.create_string_buffer(b"Apache-2.0")
    addresses = ctypes.addressof(code), ctypes.addressof(licence)
    return _bpf(_PROG_LOAD, struct.pack("IIQQIIQII", _CGROUP_SKB, len(_DROP) // 8, *addresses, 0, 0, 0, 0, 0))


def _bpf(command: int, attributes: bytes) -> int:
    """A new descriptor. Raises OSError."""
    buffer = ctypes.create_string_buffer(attributes, 128)
    library = ctypes.CDLL(None, use_errno=True)
    number = library.syscall(_BPF[platform.machine()], command, buffer, len(attributes))
    if number < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return number
