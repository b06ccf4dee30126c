"""The wall clock of live processes of this machine is ahead: the code by which they read it is another for a while.

The kernel has namespaces for the clocks that count from the boot, which nobody can enter while it runs, and none for
the wall clock. But a process reads the clock by code that the kernel maps into it, the vDSO (vdso(7)), and its page of
that code may be its own. Here the three functions that read the wall clock are replaced, in the stopped process: the
new ones ask the kernel and add some seconds. Its children inherit them; a program that it executes does not.
"""

import ctypes
import os
import platform
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil

AHEAD_S = 3600
"""How far the clock is ahead."""
_LIBRARY = "linux-vdso.so.1"
_SYMBOL_ENTRY = 1
"""dladdr1(3): RTLD_DL_SYMENT."""
_SIZE_OFFSET = 16
"""Of `st_size` in a symbol of a 64-bit ELF file."""
_TRIES, _PAUSE_S, _STOP_S = 50, 0.005, 5.0


def _functions(seconds: int) -> Mapping[str, bytes]:
    """Code for x86-64: by name, each asks the kernel and adds `seconds` to what it says of the wall clock."""
    amount = struct.pack("<i", seconds)
    return {
        "__vdso_clock_gettime": (  # eax = 228; syscall; if eax: return; if clock is neither 0 nor 5: return
            bytes.fromhex("b8e4000000 0f05 85c0 7510 85ff 7405 83ff05 7507")
            + (bytes.fromhex("488106") + amount + b"\xc3")  # ts->tv_sec += seconds; return
        ),
        "__vdso_gettimeofday": (  # eax = 96; syscall; if eax or not tv: return
            bytes.fromhex("b860000000 0f05 85c0 750c 4885ff 7407")
            + (bytes.fromhex("488107") + amount + b"\xc3")  # tv->tv_sec += seconds; return
        ),
        "__vdso_time": (  # eax = 201; syscall; rax += seconds; if t: *t = rax; return
            bytes.fromhex("b8c9000000 0f05 4805") + amount + bytes.fromhex("4885ff 7403 488907 c3")
        ),
    }


class _Symbol(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("at", ctypes.c_void_p),
    )


@cache
def _places() -> Mapping[str, int]:
    """Where the functions begin in the vDSO, the same in each 64-bit process. Raises OSError, AttributeError: it is
    not what this module knows."""
    vdso, libc = ctypes.CDLL(_LIBRARY), ctypes.CDLL(None)
    places = {}
    for name, code in _functions(0).items():
        address = ctypes.cast(getattr(vdso, name), ctypes.c_void_p).value or 0
        facts, entry = _Symbol(), ctypes.c_void_p()
        if not libc.dladdr1(ctypes.c_void_p(address), ctypes.byref(facts), ctypes.byref(entry), _SYMBOL_ENTRY):
            raise OSError(f"{name} is not in {_LIBRARY}")
        size = ctypes.c_uint64.from_address((entry.value or 0) + _SIZE_OFFSET).value
        if size < len(code):
            raise OSError(f"{name} has only {size} bytes")
        places[name] = address - (facts.base or 0)
    return places


@cache
def _originals() -> Mapping[str, bytes]:
    """The functions' first bytes, from this process."""
    base = _mapped("self").start
    return {name: ctypes.string_at(base + _places()[name], len(code)) for name, code in _functions(0).items()}


def _mapped(pid: int | str) -> range:
    """The addresses of the process's vDSO; none: it has no such mapping, or it is gone. Raises OSError."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if line.endswith("[vdso]"):
                first, last = (int(part, 16) for part in line.split()[0].split("-"))
                return range(first, last)
    return range(0)


def refusal() -> str:
    """Why no process's clock can be set here, in one line; empty if it can."""
    if platform.machine() != "x86_64" or struct.calcsize("P") != 8:
        return f"the clock of one process can only be changed on x86-64, and this is {platform.machine()}"
    try:
        _write("self", _originals())
    except (OSError, AttributeError) as error:
        return f"the code by which a process reads the clock (vDSO) cannot be replaced here: {error}"
    return ""


@contextmanager
def ahead(processes: Callable[[], list[psutil.Process]], seconds: int = AHEAD_S) -> Iterator[int]:
    """The wall clock of these processes, and of those that they fork, is ahead; yields of how many. Raises OSError.

    `processes` is asked again at the end.
    """
    _originals()
    try:
        yield sum(_replace(process, _functions(seconds)) for process in processes())
    finally:
        errors: list[OSError] = []
        for _ in range(2):  # A process may be forked while the others are set right.
            errors.clear()
            for process in processes():
                try:
                    _replace(process, _originals())
                except OSError as error:  # The others are set right all the same.
                    errors.append(error)
        if errors:
            raise errors[0]


def _replace(process: psutil.Process, functions: Mapping[str, bytes]) -> bool:
    """False: it has ended. Raises OSError: it is always inside of that code, or may not be touched."""
    vdso = _mapped(process.pid)
    if not vdso:
        return False
    for _ in range(_TRIES):
        try:
            process.suspend()
            if _stands_outside(process.pid, vdso):
                _write(process.pid, functions)
                return _read(process.pid) == functions
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            return False
        finally:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        time.sleep(_PAUSE_S)
    raise OSError(f"process {process.pid} did not stop outside of the code that reads the clock")


def _stands_outside(pid: int, vdso: range) -> bool:
    """Once each thread of the process has stopped: is none of them inside of its vDSO? Raises OSError."""
    deadline = time.monotonic() + _STOP_S
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # It has ended.
            while (place := (thread / "syscall").read_text().split())[0] == "running":
                if time.monotonic() > deadline:
                    return False
                time.sleep(_PAUSE_S)
            if int(place[-1], 16) in vdso:
                return False
    return True


def _read(pid: int) -> Mapping[str, bytes]:
    """What stands there now. Raises OSError."""
    base = _mapped(pid).start
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        return {
            name: os.pread(memory.fileno(), len(code), base + _places()[name]) for name, code in _functions(0).items()
        }


def _write(pid: int | str, functions: Mapping[str, bytes]) -> None:
    """Raises OSError."""
    base = _mapped(pid).start
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        for name, code in functions.items():
            os.pwrite(memory.fileno(), code, base + _places()[name])
