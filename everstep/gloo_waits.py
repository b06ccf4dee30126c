"""Ends waits in gloo that gloo has forgotten.

When a connection ends, gloo tells the buffers whose message waits for its turn. It does not tell one whose message is
half written, half read, or was refused by the closed socket: `Pair::signalException` visits `Op::buf` in `tx_` and not
`Op::ubuf`, and does not visit `rx_` (gloo/transport/tcp/pair.cc, as of torch 2.15). A thread at such a buffer waits
until the group's timeout, which torch gives each operation when it begins, and no call of torch ends it.

So a thread that does not come back is looked up here: its buffer lies around the address that it sleeps at, and gets
the exception that gloo owes it. The buffer's class is compared before anything is called. Where gloo is built
otherwise, no buffer is recognized, nothing is called, and the agent ends the process.
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

_BUFFER = "N4gloo9transport3tcp13UnboundBuffer"
_BUFFER_BYTES = 512
"""A buffer has less."""
_WORD = struct.Struct("@Q")
_ERROR_BYTES = 16
_MESSAGE = b"gloo: the connection ended within a message"


class GlooWaits:
    """The waits of this process. Used by one thread, after gloo has seen the end of all connections (`GroupSockets`): a
    thread that it calls back meanwhile would free the buffer."""

    def __init__(self) -> None:
        self._before = set[tuple[str, str]]()
        """The threads that slept at the last call, and where: gloo's own word needs some milliseconds."""

    def end_forgotten(self) -> int:
        """Let each wait raise RuntimeError that was there at the last call, too. Returns how many."""
        asleep = set(_sleeping_threads())
        stayed, self._before = asleep & self._before, asleep
        if not stayed or (gloo := _Gloo.find()) is None:
            return 0
        around = (gloo.buffer_around(_first_argument(call)) for _, call in stayed)
        buffers = {buffer for buffer in around if buffer is not None}
        for buffer in buffers:
            gloo.signal(buffer)
        return len(buffers)


class _Gloo:
    """What torch's gloo and the C++ library export."""

    def __init__(self) -> None:
        """Raises OSError, AttributeError or ValueError: they are not there, or export something else."""
        loaded = os.RTLD_NOLOAD | os.RTLD_LAZY
        gloo = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"), mode=loaded)
        standard = ctypes.CDLL("libstdc++.so.6", mode=loaded)
        self._class = ctypes.addressof(ctypes.c_char.in_dll(gloo, f"_ZTI{_BUFFER}E"))
        self._signal_exception = gloo[f"_Z{_BUFFER}15signalExceptionENSt15__exception_ptr13exception_ptrE"]
        self._allocate_exception = standard["__cxa_allocate_exception"]
        self._allocate_exception.restype = ctypes.c_void_p
        self._init_exception = standard["__cxa_init_primary_exception"]
        self._init_pointer = standard["_ZNSt15__exception_ptr13exception_ptrC1EPv"]
        self._init_error, self._end_error = standard["_ZNSt13runtime_errorC1EPKc"], standard["_ZNSt13runtime_errorD1Ev"]
        self._error_class = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(standard, "_ZTISt13runtime_error")))

    @staticmethod
    @cache
    def find() -> "_Gloo | None":
        """None where gloo is another."""
        with suppress(OSError, AttributeError, ValueError):
            return _Gloo()
        return None

    def buffer_around(self, address: int) -> int | None:
        """The buffer that has the address inside; None if it is not in a buffer."""
        end = (address | _WORD.size - 1) + 1
        words = [word for (word,) in _WORD.iter_unpack(_read_memory(end - _BUFFER_BYTES, _BUFFER_BYTES))]
        for distance, word in enumerate(reversed(words), start=1):
            # An object begins with the address of its class's functions, in front of which stands the class's.
            if _read_memory(word - _WORD.size, _WORD.size) == _WORD.pack(self._class):
                return end - distance * _WORD.size
        return None

    def signal(self, buffer: int) -> None:
        """Let whoever waits at the buffer raise std::runtime_error."""
        error, pointer = ctypes.c_void_p(self._allocate_exception(ctypes.c_size_t(_ERROR_BYTES))), ctypes.c_void_p()
        self._init_error(error, _MESSAGE)
        self._init_exception(error, self._error_class, self._end_error)
        self._init_pointer(ctypes.byref(pointer), error)
        self._signal_exception(ctypes.c_void_p(buffer), ctypes.byref(pointer))  # It takes over what `pointer` holds.


def _sleeping_threads() -> Iterator[tuple[str, str]]:
    """Each thread that sleeps in a system call: its number; the call's number, arguments and place, from /proc."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            call = Path(f"/proc/self/task/{thread}/syscall").read_text()
            if len(call.split()) == 9:  # Fewer of a thread that runs.
                yield thread, call


def _first_argument(call: str) -> int:
    return int(call.split()[1], 16)


def _read_memory(address: int, size: int) -> bytes:
    """This process's memory there; empty if there is none."""
    with suppress(OSError, OverflowError), open("/proc/self/mem", "rb", buffering=0) as memory:
        content = os.pread(memory.fileno(), size, address)
        return content if len(content) == size else b""
    return b""
