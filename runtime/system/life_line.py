"""A process's life line: it reports the process's end before the kernel has freed its memory.

Linux ends a process in this order: no thread runs its code any more, its robust mutexes are released, its memory is
freed, and only then its parent hears of it (do_exit in kernel/exit.c; pthread_mutexattr_setrobust(3)). Freeing a
gigabyte in small pages took a second on a busy machine.
"""

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_BYTES = mmap.PAGESIZE
_SHARED, _ROBUST = 1, 1
"""PTHREAD_PROCESS_SHARED, PTHREAD_MUTEX_ROBUST."""
_EXITING = 0x4
"""PF_EXITING, of a thread that never returns to its code (proc(5), stat, flags)."""
_LOOKS, _LOOK_S = 100, 0.002
_HELD_S, _HELD_LOOK_S = 10.0, 0.02

_held: list[mmap.mmap] = []


def hold(path: Path) -> None:
    """Lock a mutex in a new file there until this thread ends. Raises OSError."""
    new = path.with_suffix(".new")
    with new.open("xb+") as file:
        file.truncate(_BYTES)
        memory = mmap.mmap(file.fileno(), _BYTES)
    libc, attributes, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64), _address(memory)
    libc.pthread_mutexattr_init(attributes)
    libc.pthread_mutexattr_setpshared(attributes, _SHARED)
    libc.pthread_mutexattr_setrobust(attributes, _ROBUST)
    libc.pthread_mutex_init(mutex, attributes)
    libc.pthread_mutex_lock(mutex)
    _held.append(memory)
    new.rename(path)


def watch(path: Path, pid: int, on_end: Callable[[int], None]) -> None:
    """Call `on_end`, in a thread, with the exit code of the process that holds the line, as `wait_for_end` returns it.

    Not if the exit code is 0 or not known. The process may hold its line some seconds later, or never."""
    threading.Thread(target=_watch, args=(path, pid, on_end), name="everstep-life-line", daemon=True).start()


def _watch(path: Path, pid: int, on_end: Callable[[int], None]) -> None:
    until = time.monotonic() + _HELD_S
    while time.monotonic() < until:
        with suppress(FileNotFoundError):
            if exit_code := wait_for_end(path, pid):
                on_end(exit_code)
            return
        time.sleep(_HELD_LOOK_S)


def wait_for_end(path: Path, pid: int) -> int | None:
    """Wait, in a thread, until the process that holds the line at `path` ends, and remove the file.

    Returns its exit code, negative for a signal, while its memory may still be freed: none of its threads runs its
    code. None if that is not known: its parent hears of its end. Raises OSError if nobody holds a line there.
    """
    with path.open("rb+") as file:
        memory = mmap.mmap(file.fileno(), _BYTES)
    ctypes.CDLL(None).pthread_mutex_lock(_address(memory))
    path.unlink(missing_ok=True)
    for _ in range(_LOOKS):
        with suppress(OSError):
            if _is_exiting(pid):
                status = int(_fields(f"/proc/{pid}/stat")[-1])
                return os.waitstatus_to_exitcode(status) if status else None
        time.sleep(_LOOK_S)
    return None


def _is_exiting(pid: int) -> bool:
    """Raises OSError: it is gone."""
    threads = os.listdir(f"/proc/{pid}/task")
    return all(int(_fields(f"/proc/{pid}/task/{thread}/stat")[6]) & _EXITING for thread in threads)


def _fields(path: str) -> list[str]:
    """From the state on."""
    return Path(path).read_text().rpartition(")")[2].split()


def _address(memory: mmap.mmap) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
