"""A worker's stdout and stderr: line by line to the node's log, or as `logs` says. Their ends are kept for errors."""

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
"""Bytes at the end of a worker's output that are kept to explain a failure."""
_CHUNK = 1 << 16


class Output(Protocol):
    """One worker's streams and error file, from before it starts until after its end."""

    stdout: int
    """File descriptor for the worker, open here until the worker has it."""
    stderr: int
    error_file: str
    """Value of TORCHELASTIC_ERROR_FILE; empty: none."""

    def close_descriptors(self) -> None:
        """Close our copies of the worker's descriptors: it has its own, or will never start."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether what it gets is read here, and is not closed yet."""
        ...

    def close(self) -> None:
        """Read the rest of a dead worker's output, then close everything; does nothing if it is closed."""
        ...

    def close_at_end(self) -> None:
        """The worker writes to another output from now on: read until no process holds this one, then close it."""
        ...

    def last_words(self) -> str:
        """The end of the worker's output, at most 16 KiB; empty if it was not captured."""
        ...


class Outputs(Protocol):
    """Creates the outputs of a node's workers."""

    def begin(self, attempt: int, environments: Sequence[dict[str, str]]) -> None:
        """Begin a round; `attempt` earlier rounds of the job have run.

        `environments`: the environment of each local rank's worker; a log layout of the user may change it.
        """
        ...

    def open(self, local_rank: int, rank: int) -> Output:
        """Open the output of one worker of this round."""
        ...


class Pipe:
    """A pipe on an event loop that passes lines on as they arrive."""

    def __init__(
        self,
        on_lines: Callable[[list[bytes]], None],
        on_bytes: Callable[[bytes], None] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """`on_lines` gets complete lines without line ends; at close also an unfinished last line. `on_bytes` gets all
        bytes, `on_close` is called when it is closed."""
        self._on_lines = on_lines
        self._on_bytes = on_bytes
        self._on_close = on_close
        self.is_open = True
        self._is_at_end = self._closes_at_end = False
        self._line = b""
        self._last = bytearray()
        self._read, self.write_end = os.pipe()
        os.set_blocking(self._read, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self._on_readable)

    def close(self) -> None:
        """Read what is in the pipe, then close it. Later output of processes that still hold the pipe is lost. Does
        nothing if it is closed."""
        if not self.is_open:
            return
        self._read_rest()
        self.is_open = False
        self._loop.remove_reader(self._read)
        os.close(self._read)
        if self._on_close is not None:
            self._on_close()

    def close_at_end(self) -> None:
        """Read on until no process holds the pipe, then close it. What is in it by now is passed on at once."""
        self._closes_at_end = True
        self._read_rest()
        if self._is_at_end:
            self.close()

    def last_words(self) -> str:
        """The last 16 KiB."""
        return bytes(self._last[-LAST_WORDS:]).decode(errors="replace").strip()

    def _on_readable(self) -> None:
        self._read_chunk()
        if self._is_at_end and self._closes_at_end:
            self.close()
        elif self._is_at_end:
            self._loop.remove_reader(self._read)

    def _read_rest(self) -> None:
        """Read what is in the pipe, and pass on an unfinished line."""
        bytes_left = fcntl.fcntl(self._read, fcntl.F_GETPIPE_SZ)
        while bytes_left > 0 and (chunk_size := self._read_chunk()):
            bytes_left -= chunk_size
        if self._line:
            self._on_lines([self._line])
            self._line = b""

    def _read_chunk(self) -> int:
        """Read one chunk and return its number of bytes; 0 at the end or if the pipe is empty."""
        try:
            chunk = os.read(self._read, _CHUNK)
        except BlockingIOError:
            return 0
        if not chunk:
            self._is_at_end = True
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
    """Write all, or drop the rest on an error: a full disk or a closed terminal must not end training."""
    with suppress(OSError):
        while data:
            data = data[os.write(file, data) :]


def write_lines(file: int, lines: Iterable[bytes]) -> None:
    """Write lines, or drop them on an error. Batches of up to PIPE_BUF bytes are atomic among writers of one pipe."""
    batch = bytearray()
    for line in lines:
        if batch and len(batch) + len(line) > select.PIPE_BUF:
            write_all(file, bytes(batch))
            batch.clear()
        batch += line
    write_all(file, bytes(batch))


class NodeLog:
    """Both streams of every worker go to the node's log, each line after `[rank] `; error files to a private folder."""

    def __init__(self, log: int, folder: Path) -> None:
        self._log = log
        self._folder = folder
        path = log_path_of(log)
        self._rotation = Rotation([path] if path else [])

    def begin(self, attempt: int, environments: Sequence[dict[str, str]]) -> None:
        """Rotate the log, which all rounds share."""
        self._rotation.start()

    def open(self, local_rank: int, rank: int) -> Output:
        """Open the output of one worker."""
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

    @property
    def is_open(self) -> bool:
        return self._pipe.is_open

    def close(self) -> None:
        self._pipe.close()

    def close_at_end(self) -> None:
        self._pipe.close_at_end()

    def last_words(self) -> str:
        return self._pipe.last_words()

    def _write(self, lines: list[bytes]) -> None:
        write_lines(self._log, (self._prefix + line + b"\n" for line in lines))
