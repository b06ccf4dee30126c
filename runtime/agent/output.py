"""Where a worker's stdout and stderr go: line by line to the node's log, or as `logs` says. The end of them is kept."""

import asyncio
import fcntl
import os
import select
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from everstep.runtime.system.rotate import Rotation, log_path_of

LAST_WORDS = 16 << 10
"""Bytes of a worker's output that are kept for the error of a fault."""
_CHUNK = 1 << 16


class Output(Protocol):
    """One worker's streams and error file, from before it starts until after its end."""

    stdout: int
    """File descriptor for the worker; ours until `handed_over`."""
    stderr: int
    error_file: str
    """For TORCHELASTIC_ERROR_FILE; empty where there shall be none."""

    def close_descriptors(self) -> None:
        """The worker has its descriptors (or will never begin): close ours."""
        ...

    def close(self) -> None:
        """The worker is dead: read what is still there, let go of everything."""
        ...

    def last_words(self) -> str:
        """The end of what it wrote, at most 16 KiB; empty where nobody listened."""
        ...


class Outputs(Protocol):
    """Makes the outputs of a node's workers."""

    def begin(self, attempt: int, environments: Sequence[dict[str, str]]) -> None:
        """A round begins: so many rounds of the job were before it.

        `environments`: what each local rank's worker gets; a log layout of the user's may change it.
        """
        ...

    def open(self, local_rank: int, rank: int) -> Output:
        """For one worker of this round."""
        ...


class Pipe:
    """A pipe whose lines are given away as they come, on an event loop."""

    def __init__(
        self, on_lines: Callable[[list[bytes]], None], on_bytes: Callable[[bytes], None] | None = None
    ) -> None:
        """`on_lines` gets whole lines without their ends (a last one may have had none); `on_bytes` all that comes."""
        self._on_lines = on_lines
        self._on_bytes = on_bytes
        self._line = b""
        self._last = bytearray()
        self._read, self.write_end = os.pipe()
        os.set_blocking(self._read, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self._on_readable)

    def close(self) -> None:
        """Read what is in the pipe, then let go of it: what others that still hold it write from now on is lost."""
        left = fcntl.fcntl(self._read, fcntl.F_GETPIPE_SZ)
        while left > 0 and (taken := self._read_chunk()):
            left -= taken
        self._loop.remove_reader(self._read)
        os.close(self._read)
        if self._line:
            self._on_lines([self._line])
            self._line = b""

    def last_words(self) -> str:
        """The last 16 KiB."""
        return bytes(self._last[-LAST_WORDS:]).decode(errors="replace").strip()

    def _on_readable(self) -> None:
        if not self._read_chunk():
            self._loop.remove_reader(self._read)

    def _read_chunk(self) -> int:
        """One chunk; its bytes: 0 at the end, or when nothing is there now and we are closing."""
        try:
            chunk = os.read(self._read, _CHUNK)
        except BlockingIOError:
            return 0
        if not chunk:
            return 0
        if self._on_bytes is not None:
            self._on_bytes(chunk)
        self._last += chunk
        if len(self._last) > 4 * LAST_WORDS:
            del self._last[:-LAST_WORDS]
        *lines, self._line = (self._line + chunk).split(b"\n")
        if len(self._line) > _CHUNK:
            lines, self._line = [*lines, self._line], b""
        if lines:
            self._on_lines(lines)
        return len(chunk)


def write_all(file: int, data: bytes) -> None:
    """Write, or lose it: a full disk or a closed terminal must not end the training."""
    with suppress(OSError):
        while data:
            data = data[os.write(file, data) :]


def write_lines(file: int, lines: Iterable[bytes]) -> None:
    """Write lines, or lose them, so that other writers of the same pipe cannot come between: in one write what fits."""
    batch = bytearray()
    for line in lines:
        if batch and len(batch) + len(line) > select.PIPE_BUF:
            write_all(file, bytes(batch))
            batch.clear()
        batch += line
    write_all(file, bytes(batch))


class NodeLog:
    """Both streams of every worker into the node's log, each line after `[rank] `; error files in a private folder."""

    def __init__(self, log: int, folder: Path) -> None:
        self._log = log
        self._folder = folder
        path = log_path_of(log)
        self._rotation = Rotation([path] if path else [])

    def begin(self, attempt: int, environments: Sequence[dict[str, str]]) -> None:
        """All rounds share the log."""
        self._rotation.start()

    def open(self, local_rank: int, rank: int) -> Output:
        """A worker's."""
        error_file = self._folder / f"error-{local_rank}.json"
        error_file.unlink(missing_ok=True)
        return _PrefixedOutput(self._log, f"[{rank}] ".encode(), str(error_file))


class _PrefixedOutput:
    def __init__(self, log: int, prefix: bytes, error_file: str) -> None:
        self._log = log
        self._prefix = prefix
        self._pipe = Pipe(self._write)
        self.stdout = self.stderr = self._pipe.write_end
        self.error_file = error_file

    def close_descriptors(self) -> None:
        os.close(self.stdout)

    def close(self) -> None:
        self._pipe.close()

    def last_words(self) -> str:
        return self._pipe.last_words()

    def _write(self, lines: list[bytes]) -> None:
        write_lines(self._log, (self._prefix + line + b"\n" for line in lines))
