"""How every step begins and ends: flags from its config, outputs to files, errors in one line, exit codes.

Exit codes: 0 done, 1 the training's own error, 2 bad input, 3 no healthy quorum, 75 infrastructure (try again), 143
told to end (SIGTERM).
"""

import ast
import dataclasses
import errno
import importlib.metadata
import inspect
import json
import os
import platform
import re
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol, TypeVar

from everstep import flags
from everstep.errors import BadInput, why_not_writable
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.store.code import is_code_address
from everstep.runtime.system import atomic
from everstep.runtime.system.backoff import backoff

TERMINATED = 128 + signal.SIGTERM
_SOON_S = 0.005
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
MOST = 999_999_999
"""The largest count in a flag: keys of checkpoints have nine digits for it."""


class StepError(BadInput):
    """The step cannot continue: one line that says what, where and how to fix it, and the exit code."""

    def __init__(self, message: str, code: int = ExitCode.BAD_INPUT) -> None:
        super().__init__(message)
        self.code = code


class StepConfig(Protocol):
    """The fields of each step's frozen dataclass besides the step's own parameters."""

    @property
    def store(self) -> str:
        """URI of the store: a directory, or s3://bucket/prefix."""
        ...

    @property
    def run(self) -> str:
        """Name of the run this step belongs to."""
        ...

    @property
    def task(self) -> str:
        """Name of the task in that run; it distinguishes two tasks of one step."""
        ...

    @property
    def outputs(self) -> str:
        """Folder for output parameters and artifacts, one file each."""
        ...

    def check(self) -> None:
        """Raise StepError for errors that can be known before anything starts. Cheap; standard library only."""
        ...


@dataclass(frozen=True)
class Result:
    """What a step returns."""

    summary: str
    """One line for a person: `214 documents  11.8 MB`."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Output parameters by name."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Anything that the report shows about this step (JSON)."""
    artifacts: Mapping[str, Path] = field(default_factory=dict)
    """Output artifacts by name: a file or a folder."""


C = TypeVar("C", bound=StepConfig)


def require_count(flag: str, value: int, least: int) -> None:
    """Raise StepError for a count below `least`, or too large for what it counts (keys and counters are of a fixed
    width)."""
    if not least <= value <= MOST:
        bound_text = f"at least {least}" if value < least else f"at most {MOST}"
        raise StepError(f"{flag} {value}: must be {bound_text}")


def require_number(flag: str, value: float, most: float = MOST) -> None:
    """Raise StepError unless it is from 0 to `most`."""
    if not 0 <= value <= most:
        raise StepError(f"{flag} {value:g}: must be from 0 to {most:g}")


def require_script(flag: str, script: str) -> None:
    """Raise StepError unless it is a file that Python can read, the address of code in a store, or empty."""
    if not script or is_code_address(script):
        return
    if not os.path.isfile(script):
        what = "a folder; name the script in it" if os.path.isdir(script) else "no such file"
        raise StepError(f"{flag} {script}: {what}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(Path(script).read_bytes())
    except OSError as error:
        raise StepError(f"{flag} {script}: cannot be read ({error.strerror})") from None
    except SyntaxError as error:
        where = f" line {error.lineno}" if error.lineno else ""
        raise StepError(f"{flag} {script}{where}: {error.msg}; it is not a Python script that can start") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise StepError(f"{flag} {script}: not a Python script ({error})") from None


def artifact(config: StepConfig, name: str, content: bytes) -> Path:
    """A file of that name among the step's outputs."""
    path = Path(config.outputs, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


class Terminated(BaseException):
    """SIGTERM arrived. A BaseException, so that only `main` and cleanup (`finally`) see it."""


def _terminate(signum: int, frame: FrameType | None) -> None:
    """Raise Terminated, but not inside Python's import system, whose lock would stay locked for other threads.

    An exception raised there may even be lost: the garbage collector calls some of the import system's callbacks.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        signal.setitimer(signal.ITIMER_REAL, _SOON_S)
        return
    raise Terminated


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer SIGTERM and Ctrl-C to the end of the block, so that what it starts is known by then.

    Raises ValueError outside the main thread.
    """
    arrived: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)


def main(
    step: str,
    config_type: type[C],
    run: Callable[[C], Result],
    parse: Callable[[type[C], str, str], C] = flags.parse,
    module: str = "",
    patience_s: float = 0.0,
) -> NoReturn:
    """Run a step as a process: parse and check the flags, work, write outputs and summary, exit.

    `module`: what `python -m` runs it by, if it is not one of `everstep.steps`. `patience_s`: how long it waits for a
    store that does not answer.
    """
    command = f"python -m {module or f'everstep.steps.{step}'}"
    config = parse(config_type, command, _help(command, config_type))
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _terminate)
    began = time.time()
    try:
        wait_for_store(config.store, patience_s)
        config.check()
        require_names(config)
        require_writable(config)
        result = run(config)
        _write(step, config, result, time.time() - began)
    except BadInput as error:
        print(f"{step}: {error}", file=sys.stderr)
        sys.exit(error.code if isinstance(error, StepError) else ExitCode.BAD_INPUT)
    except Terminated:
        print(f"{step}: asked to stop", file=sys.stderr)
        sys.exit(TERMINATED)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        message = disk_error_line(error, config.store)
        if message is None:
            raise
        print(f"{step}: {message}", file=sys.stderr)
        sys.exit(disk_error_code(error))
    print(result.summary, file=sys.stderr)
    sys.exit(0)


def require_names(config: StepConfig) -> None:
    """Raise StepError for names of run and task that cannot be parts of a key in the store."""
    for flag, name in (("--run", config.run), ("--task", config.task)):
        if not _NAME.fullmatch(name):
            raise StepError(f"{flag} {name!r}: use letters, digits and . _ -")


def require_writable(config: StepConfig) -> None:
    """Raise StepError for an output folder or a directory store that the step could not write to at its end.

    S3 is asked when the step opens it. Nothing is left behind but the store's own folder.
    """
    from everstep.runtime.store import StoreError, is_s3_uri, open_store, require_writes

    if why := why_not_writable(Path(config.outputs)):
        raise StepError(f"--outputs {config.outputs}: {why}; choose another folder")
    if not config.store:
        raise StepError("--store is empty: give a directory, or s3://bucket/prefix")
    if not is_s3_uri(config.store):
        try:
            require_writes(open_store(config.store))
        except StoreError as error:
            raise StepError(f"--store {config.store}: {error}") from None


def wait_for_store(uri: str, patience_s: float, now: Callable[[], float] = time.monotonic) -> None:
    """Wait until a bucket answers; the log says so. Whatever else is wrong with it, and a directory, is not waited for.

    Raises StepError: it has not answered for `patience_s`.
    """
    from everstep.runtime.store import StoreError, Unavailable, is_s3_uri, open_store

    if not is_s3_uri(uri) or not patience_s:
        return
    until, pauses, is_told = now() + patience_s, backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S), False
    while True:
        try:
            open_store(uri)
        except Unavailable as error:
            if now() > until:
                raise StepError(f"--store {uri}: {error}", ExitCode.TRY_AGAIN) from None
            if not is_told:
                print(f"waits for the store, at most {patience_s:.0f} s: {error}", file=sys.stderr, flush=True)
            is_told = True
            time.sleep(next(pauses))
        except StoreError:
            return  # Who opens it next says what is wrong.
        else:
            if is_told:
                print(f"the store answers: {uri}", file=sys.stderr, flush=True)
            return


def disk_error_line(error: OSError, store: str) -> str | None:
    """The one line for a store that cannot be written; None if the disk is not the reason."""
    from everstep.runtime.store import StoreError

    place = error.filename or store
    if isinstance(error, StoreError):
        return str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on the disk of {place}; free some, or choose another --store"
    if error.errno in (errno.EACCES, errno.EROFS, errno.ENOTDIR):
        return f"{place}: {error.strerror}; choose a --store and --outputs that can be written"
    return None


def disk_error_code(error: OSError) -> ExitCode:
    """The step's exit code for it: only a store that does not answer at the moment may do so at another try."""
    from everstep.runtime.store import Unavailable

    return ExitCode.TRY_AGAIN if isinstance(error, Unavailable) else ExitCode.BAD_INPUT


def _help(command: str, config_type: type[Any]) -> str:
    example = f"{command} --store runs/store --outputs /tmp/out"
    return f"{inspect.cleandoc(config_type.__doc__ or '')}\n\nexample:\n  {example}"


def _environment() -> dict[str, str | int]:
    """Where this step runs, for the report."""
    versions = {name: _version(name) for name in ("everstep", "torch")}
    return {
        "host": platform.node(), "cpus": os.cpu_count() or 0, "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(), **versions,
    }  # fmt: skip


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _write(step: str, config: StepConfig, result: Result, seconds: float) -> None:
    """Write the outputs as files, each under its final name only when complete; then the summary for the report."""
    folder = Path(config.outputs)
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in result.outputs.items():
        atomic.replace(folder / name, value.encode())
    for name, source in result.artifacts.items():
        target = folder / name
        if source.resolve() == target.resolve():
            continue
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            atomic.replace(target, source.read_bytes())

    from everstep.runtime.store import open_store

    summary = {
        "step": step,
        "summary": result.summary,
        "seconds": round(seconds, 3),
        "ended": round(time.time(), 3),
        "facts": dict(result.facts),
        "settings": dataclasses.asdict(config),  # type: ignore[call-overload]
        "environment": _environment(),
    }
    open_store(config.store).put(f"runs/{config.run}/steps/{config.task}.json", json.dumps(summary, indent=1).encode())
