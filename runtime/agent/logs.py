"""torchrun's layout of the workers' streams (console, files, or both) and error files:

    <folder>/<run id>_<random>/attempt_<N>/<local rank>/{stdout.log,stderr.log,error.json}

After `torch.distributed.elastic.multiprocessing.DefaultLogsSpecs`. A stream that is neither redirected nor teed is the
console itself: the worker gets our own descriptor, so a terminal stays a terminal.
"""

import os
import re
import shutil
import socket
import string
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from everstep.runtime.agent.output import LAST_WORDS, Output, Pipe, write_all, write_lines
from everstep.runtime.system.rotate import Rotation

ATTEMPTS = 16
"""Rounds whose logs are kept. torchrun keeps all, but has few."""
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND

_STREAMS_OF_ALL = re.compile(r"[0123]")
_STREAMS_BY_RANK = re.compile(r"(\d:[0123],)*\d:[0123]")


@dataclass(frozen=True)
class Streams:
    """A choice of the workers' streams: bit 1 stdout, bit 2 stderr."""

    all: int = 0
    by_rank: Mapping[int, int] | None = None

    def for_rank(self, local_rank: int) -> int:
        """The bits of that worker."""
        return self.all if self.by_rank is None else self.by_rank.get(local_rank, 0)

    def any(self) -> bool:
        """Whether any stream of any worker is chosen."""
        return bool(self.all or any((self.by_rank or {}).values()))


def parse_streams(text: str, flag: str) -> Streams:
    """Parse `3` (all local ranks) or `0:1,1:3` (by local rank). Raises ValueError."""
    if _STREAMS_OF_ALL.fullmatch(text):
        return Streams(int(text))
    if _STREAMS_BY_RANK.fullmatch(text):
        return Streams(by_rank={int(rank): int(value) for rank, value in (pair.split(":") for pair in text.split(","))})
    raise ValueError(
        f"{flag} {text}: neither 0, 1, 2, 3 (none, stdout, stderr, both) nor a list as 0:1,1:3 by local rank"
    )


@dataclass(frozen=True)
class LogPlan:
    """The command line's options for logs."""

    folder: str = ""
    """Parent of the run's folder. Empty: a temporary folder, which stays if it holds logs. /dev/null: no files."""
    run_id: str = "none"
    redirects: Streams = Streams()
    tee: Streams = Streams()
    shown_ranks: frozenset[int] | None = None
    """Local ranks that may write to the console; None: all."""
    prefix: str = ""
    """Template of a teed line's prefix; empty: `[${role_name}${local_rank}]:`."""
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()

    def keeps_files(self) -> bool:
        """Whether any stream goes to a file."""
        return self.redirects.any() or self.tee.any()

    def prefix_of(self, role_name: str, local_rank: int, rank: int) -> bytes:
        """The prefix of a worker's teed lines on the console."""
        if not self.prefix:
            return f"[{role_name}{local_rank}]:".encode()
        values = {"role_name": role_name, "local_rank": local_rank, "rank": rank, "hostname": socket.gethostname()}
        return string.Template(self.prefix).safe_substitute(values).encode()


@dataclass
class LaunchLogs:
    """The outputs of one node's workers, round after round."""

    plan: LogPlan
    role_name: str
    private: Path
    """The node's temporary folder."""
    console: Sequence[int] = (1, 2)
    """Descriptors of our own stdout and stderr."""
    folder: Path | None = field(default=None, init=False)
    """The run's folder; made for the first round, None with /dev/null."""
    _attempt: Path | None = field(default=None, init=False)
    _rotation: Rotation = field(default_factory=Rotation, init=False)

    def begin(self, attempt: int, environments: Sequence[dict[str, str]]) -> None:
        """Create the folder of this attempt, delete those of old ones. Raises OSError."""
        if self.plan.folder == os.devnull:
            return
        if self.folder is None:
            base = self.plan.folder or (
                tempfile.mkdtemp(prefix="everstep_") if self.plan.keeps_files() else self.private
            )
            os.makedirs(base, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=f"{self.plan.run_id}_", dir=base))
        self._attempt = self.folder / f"attempt_{attempt}"
        shutil.rmtree(self._attempt, ignore_errors=True)
        self._attempt.mkdir()
        for path in self.folder.glob("attempt_*"):
            number = path.name.removeprefix("attempt_")
            if number.isdigit() and int(number) <= attempt - ATTEMPTS:
                shutil.rmtree(path, ignore_errors=True)
        # What a survivor keeps from an earlier round may still write there.
        self._rotation.paths = {path for path in self._rotation.paths if path.exists()}
        self._rotation.start()

    def open(self, local_rank: int, rank: int) -> Output:
        """Open the output of one worker."""
        nowhere = self._attempt is None
        own = self._attempt / str(local_rank) if self._attempt else Path(os.devnull)
        if not nowhere:
            own.mkdir()
        tee, redirect = self.plan.tee.for_rank(local_rank), self.plan.redirects.for_rank(local_rank)
        is_shown = self.plan.shown_ranks is None or local_rank in self.plan.shown_ranks
        streams = []
        for bit, name, filters in ((1, "stdout", self.plan.stdout_filters), (2, "stderr", self.plan.stderr_filters)):
            console = self.console[bit - 1] if is_shown or nowhere else None
            if nowhere or not (tee | redirect) & bit:
                streams.append(DirectOutput(console))
            elif tee & bit:
                filter_path = self._attempt / f"filtered_{name}.log" if filters and is_shown and self._attempt else None
                prefix = self.plan.prefix_of(self.role_name, local_rank, rank)
                streams.append(TeedOutput(own / f"{name}.log", console, prefix, filter_path, filters))
                self._rotation.paths |= {own / f"{name}.log", *([filter_path] if filter_path else [])}
            else:
                streams.append(RedirectedOutput(own / f"{name}.log"))
                self._rotation.paths.add(own / f"{name}.log")
        return LaunchOutput(streams[0], streams[1], "" if nowhere else str(own / "error.json"))


class DirectOutput:
    """A stream to the console, or to /dev/null."""

    is_open = False

    def __init__(self, console: int | None) -> None:
        self.file = os.open(os.devnull, os.O_WRONLY) if console is None else os.dup(console)

    def close(self) -> None:
        pass

    def close_at_end(self) -> None:
        pass

    def last_words(self) -> str:
        return ""


class RedirectedOutput:
    """A stream to a file of its own."""

    is_open = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.file = os.open(path, _APPEND | os.O_TRUNC, 0o666)

    def close(self) -> None:
        pass

    def close_at_end(self) -> None:
        pass

    def last_words(self) -> str:
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_WORDS))
            return file.read().decode(errors="replace").strip()
        return ""


class TeedOutput:
    """A stream to a file, unchanged, and to the console with a prefix before each line."""

    def __init__(
        self, path: Path, console: int | None, prefix: bytes, filter_path: Path | None, filters: Sequence[str]
    ) -> None:
        self._copy = os.open(path, _APPEND | os.O_TRUNC, 0o666)
        self._console = console
        self._prefix = prefix
        self._needles = [word.encode() for word in filters]
        self._filtered = os.open(filter_path, _APPEND, 0o666) if filter_path else None
        self._pipe = Pipe(self._write_lines, self._write_copy, self._close_files)
        self.file = self._pipe.write_end

    @property
    def is_open(self) -> bool:
        return self._pipe.is_open

    def close(self) -> None:
        self._pipe.close()

    def close_at_end(self) -> None:
        self._pipe.close_at_end()

    def last_words(self) -> str:
        return self._pipe.last_words()

    def _close_files(self) -> None:
        os.close(self._copy)
        if self._filtered is not None:
            os.close(self._filtered)

    def _write_copy(self, data: bytes) -> None:
        if _has_name(self._copy):
            write_all(self._copy, data)

    def _write_lines(self, lines: list[bytes]) -> None:
        if self._console is not None:
            write_lines(self._console, (self._prefix + line + b"\n" for line in lines))
        if self._filtered is not None and _has_name(self._filtered):
            matching_lines = [line for line in lines if any(needle in line for needle in self._needles)]
            write_lines(self._filtered, (self._prefix + line + b"\n" for line in matching_lines))


def _has_name(file: int) -> bool:
    """Whether the file was not deleted with the folder of an old attempt: nothing would rotate it any more."""
    return os.fstat(file).st_nlink > 0


class LaunchOutput:
    """Both streams of a worker, and its error file."""

    def __init__(
        self,
        stdout: DirectOutput | RedirectedOutput | TeedOutput,
        stderr: DirectOutput | RedirectedOutput | TeedOutput,
        error_file: str,
    ) -> None:
        self._streams = (stdout, stderr)
        self.stdout, self.stderr = stdout.file, stderr.file
        self.error_file = error_file

    def close_descriptors(self) -> None:
        os.close(self.stdout)
        os.close(self.stderr)

    @property
    def is_open(self) -> bool:
        return any(stream.is_open for stream in self._streams)

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def close_at_end(self) -> None:
        for stream in self._streams:
            stream.close_at_end()

    def last_words(self) -> str:
        """The end of stderr; of stdout if stderr is empty."""
        return self._streams[1].last_words() or self._streams[0].last_words()
