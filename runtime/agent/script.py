"""Runs a user's script as `__main__` in a forked process, as `python script.py` and `python -m module` would.

Standard library only, except that --run-path uses torch: the fork server imports nothing else before it preloads.
"""

import atexit
import contextlib
import os
import pkgutil
import runpy
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, NoReturn

TRACEBACK_VARIABLE = "EVERSTEP_TRACEBACK"
"""Names the file for the traceback of a script that dies of an exception; the agent reads it."""


class Kind(StrEnum):
    """How a command is run, named by the word in front of it."""

    SCRIPT = ""
    MODULE = "-m"
    PROGRAM = "--no-python"
    """Any program, looked up in PATH."""
    RUN_PATH = "--run-path"
    """As torchrun's: runpy.run_path under torch's `record`, which writes the error file."""


class Command(NamedTuple):
    """What a worker runs."""

    kind: Kind
    target: str
    arguments: list[str]


def split_command(command: Sequence[str]) -> Command:
    """Parse `[-m | --no-python | --run-path] target args...`. Raises ValueError if there is no target."""
    kind = Kind(command[0]) if command and command[0] in set(Kind) - {Kind.SCRIPT} else Kind.SCRIPT
    rest = list(command[1:] if kind else command)
    if not rest:
        raise ValueError(
            f"{kind.value} needs a target" if kind else "no script; write it last: ... -- train.py --its-flags"
        )
    return Command(kind, rest[0], rest[1:])


def exec_arguments(command: Sequence[str], python: str) -> list[str]:
    """The arguments to exec the command as a process of its own."""
    kind, target, arguments = split_command(command)
    if kind is Kind.PROGRAM:
        return [target, *arguments]
    if kind is Kind.RUN_PATH:
        return [python, "-m", "everstep.runtime.agent.script", *command]
    return [python, "-u", *command]


def has_main(path: str) -> bool:
    """Whether the path is a folder or a `zipapp` archive whose `__main__.py` Python runs."""
    return pkgutil.get_importer(path) is not None


def import_root(command: Command) -> str:
    """The first entry of sys.path: the script's folder or archive; for a module the current folder."""
    if command.kind is not Kind.SCRIPT:
        return os.getcwd()
    return command.target if has_main(command.target) else os.path.dirname(os.path.realpath(command.target))


def run_and_exit(command: Sequence[str]) -> NoReturn:
    """Run the command, then end this process with the exit code that Python would return."""
    code = 1
    try:
        code = _exit_code(command)
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                code = code or 120
        os._exit(code)


def _exit_code(command: Sequence[str]) -> int:
    code = 0
    try:
        _run(command)
    except BaseException as error:  # noqa: BLE001 - the outermost edge of the worker
        code = exit_code_of(error)
        if isinstance(error, SystemExit):
            if error.code is not None and not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
        elif not isinstance(error, KeyboardInterrupt):
            error = error.with_traceback(_script_traceback(error))
            traceback.print_exception(error)
            _write_traceback(error)
    threading._shutdown()  # type: ignore[attr-defined]  # Wait for the script's threads, as the interpreter does.
    atexit._run_exitfuncs()
    return code


def _run(command: Sequence[str]) -> None:
    split = split_command(command)
    sys.path[0] = import_root(split)
    sys.argv = [split.target, *split.arguments]
    if split.kind is Kind.MODULE:
        runpy.run_module(split.target, run_name="__main__", alter_sys=True)
        return
    if split.kind is Kind.RUN_PATH:
        from torch.distributed.elastic.multiprocessing.errors import record

        record(runpy.run_path)(split.target, run_name="__main__")
        return
    if has_main(split.target):
        runpy.run_path(split.target, run_name="__main__")
        return
    path = os.path.abspath(split.target)
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _write_traceback(error: BaseException) -> None:
    path = os.environ.get(TRACEBACK_VARIABLE)
    if path:
        with contextlib.suppress(OSError):
            Path(path).write_text("".join(traceback.format_exception(error)), errors="replace")


def exit_code_of(error: BaseException) -> int:
    """What Python ends with, if nobody catches it."""
    if isinstance(error, SystemExit):
        return error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _script_traceback(error: BaseException) -> types.TracebackType | None:
    """The traceback without our own frames and those of runpy."""
    frame = error.__traceback__
    while frame and (frame.tb_frame.f_code.co_filename in (__file__, runpy.__file__) or _is_frozen(frame)):
        frame = frame.tb_next
    return frame


def _is_frozen(frame: types.TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith("<frozen runpy")


if __name__ == "__main__":
    run_and_exit(sys.argv[1:])
