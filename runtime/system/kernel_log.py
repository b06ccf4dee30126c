"""What the kernel says about killed processes and failing devices, where it may be read (Linux, /dev/kmsg)."""

import errno
import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

TELLING = re.compile(
    r"oom-kill|[Oo]ut of memory|NVRM: Xid(?! \([^)]*\): 45\b)|segfault|I/O error|Hardware Error|EDAC|soft lockup"
)
"""Messages that explain the end of a process. Xid 45 only follows from it: the driver cleans up after it (NVIDIA's "XID
Errors")."""
_PROCESS = re.compile(r"\bpid=(\d+)|[Pp]rocess (\d+)|\w\[(\d+)\]: segfault")
MOST = 5
_KEPT = 100


class KernelLog:
    """The kernel's messages from now on. What it has said so far, some thousand records, would take 10 ms to read."""

    def __init__(self, device: Path = Path("/dev/kmsg")) -> None:
        self._telling = deque[tuple[float, str]](maxlen=_KEPT)
        self._file = -1
        with suppress(OSError):
            self._file = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)

    def messages(self, since_s: float, pid: int) -> tuple[str, ...]:
        """The newest telling messages since then (seconds of CLOCK_MONOTONIC) that name no process or that one, without
        their head; empty where the log may not be read. Reads what is there and does not wait."""
        self._telling.extend(message for message in _messages(self._file) if TELLING.search(message[1]))
        return tuple(text for time, text in self._telling if time >= since_s and _is_about(text, pid))[-MOST:]

    def close(self) -> None:
        """Read no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _is_about(text: str, pid: int) -> bool:
    pids = {number for numbers in _PROCESS.findall(text) for number in numbers if number}
    return not pids or str(pid) in pids


def _messages(file: int) -> Iterator[tuple[float, str]]:
    """(Time, text): each read of the device gives one record, `priority,number,microseconds,flags;text`."""
    while True:
        try:
            record = os.read(file, 8192)
        except OSError as error:
            if error.errno == errno.EPIPE:  # It was overwritten meanwhile: the next one is there.
                continue
            return
        if not record:
            return
        for line in record.decode(errors="replace").splitlines():
            head, _, text = line.partition(";")
            fields = head.split(",")
            if len(fields) >= 3 and fields[2].isdecimal():
                yield int(fields[2]) / 1e6, text[:300]
