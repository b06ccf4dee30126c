"""Run a user's script as `__main__`, as `python script.py` and `python -m module` would, in a process that is a fork.

Standard library only; the fork server imports nothing else before it preloads.
"""

import atexit
import os
import runpy
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from typing import NoReturn


def split_command(command: Sequence[str]) -> tuple[str, str, list[str]]:
    """`[-m] target args...` -> (script path or "", module or "", args). Raises ValueError when there is no target."""
    if command[:1] == ["-m"]:
        if len(command) < 2:
            raise ValueError("-m needs a module's name")
        return "", command[1], list(command[2:])
    if not command:
        raise ValueError("no script; write it last: ... -- train.py --its-flags")
    return command[0], "", list(command[1:])


def import_root(script: str) -> str:
    """What Python puts first in sys.path: the script's folder, or the current one for a module."""
    return os.path.dirname(os.path.realpath(script)) if script else os.getcwd()


def run_and_exit(command: Sequence[str]) -> NoReturn:
    """Run it, then end this process with the exit code that Python would give."""
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
    except SystemExit as end:
        code = _code_of(end)
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:  # noqa: BLE001 - the outermost edge of the worker
        traceback.print_exception(error.with_traceback(_own_frames_cut(error)))
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # Waits for the script's threads, as the interpreter does.
    atexit._run_exitfuncs()
    return code


def _run(command: Sequence[str]) -> None:
    script, module, arguments = split_command(command)
    sys.path[0] = import_root(script)
    if module:
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    sys.argv = [script, *arguments]
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=script, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _code_of(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def _own_frames_cut(error: BaseException) -> types.TracebackType | None:
    """The traceback from the script on, without our frames and runpy's."""
    frame = error.__traceback__
    while frame and (frame.tb_frame.f_code.co_filename in (__file__, runpy.__file__) or _is_frozen(frame)):
        frame = frame.tb_next
    return frame


def _is_frozen(frame: types.TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith("<frozen runpy")
