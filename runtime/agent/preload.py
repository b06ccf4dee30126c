"""Imports, in the fork server, the top-level imports of the script, found without running it.

Fork servers of one machine take turns, as many at a time as there are cores: where all nodes of a machine start at
once, the first can train in half the time, and the last is not later. Standard library only.
"""

import ast
import ctypes
import importlib.util
import os
import pkgutil
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from everstep.runtime.agent.script import Kind, has_main, import_root, split_command

_CUDA_NOT_INITIALIZED = 3
_BY_OPTIMIZERS = "torch._dynamo"
"""Imported by a process's first torch optimizer, which takes more than a second in each worker and round."""
_BY_COMPILER = "torch._inductor.compile_fx"
_PATTERNS_OF_COMPILER = "torch._inductor.fx_passes.serialized_patterns"
"""Imported by what a process compiles first, the latter with all its modules. It takes as long, and makes most of the
objects that a survivor's first collection has to visit. No pool of processes is started by that (torch,
`maybe_warm_pool`)."""


TURN_S, _LOOK_S = 10.0, 0.05
"""A fork server waits this long for its turn; then it imports without one."""


@contextmanager
def import_turn(turns: int, wait_s: float = TURN_S, name: str = f"everstep-imports-{os.getuid()}") -> Iterator[None]:
    """Hold one of `turns` turns of this machine and user while the block runs. The end of the process frees it."""
    until = time.monotonic() + wait_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as turn:
        while not _take_turn(turn, turns, name) and time.monotonic() < until:
            time.sleep(_LOOK_S)
        yield


def _take_turn(turn: socket.socket, turns: int, name: str) -> bool:
    """Bind to the first free name, which no file stands for (unix(7), abstract)."""
    for number in range(turns):
        try:
            turn.bind(f"\0{name}-{number}")
        except OSError:
            continue
        return True
    return False


def source_of(command: Sequence[str]) -> str | None:
    """The source file of the script or module; None if there is none to read."""
    kind, target, _ = split_command(command)
    if kind is Kind.SCRIPT and has_main(target):
        return os.path.join(target, "__main__.py") if os.path.isdir(target) else None
    if kind is not Kind.MODULE:
        return None if kind is Kind.PROGRAM else target
    try:
        spec = importlib.util.find_spec(target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{target}.__main__")
    except (ImportError, ValueError):
        return None
    return spec.origin if spec and spec.origin and spec.origin.endswith(".py") else None


def top_level_imports(module: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """The absolute imports at the top level of the module."""
    for statement in module.body:
        match statement:
            case ast.Import() | ast.ImportFrom(level=0):
                yield statement


def names_optimizer(module: ast.Module) -> bool:
    """Does the code of the module name an optimizer? Comments and strings do not count."""
    for node in ast.walk(module):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.alias(name=word) | ast.ImportFrom(module=str(word)):
                if "optim" in word.lower():
                    return True
    return False


def compiles(module: ast.Module, arguments: Sequence[str]) -> bool:
    """Does the code of the module name torch.compile? If it has flags of that name: and is one of them given?"""
    names_compiler, flags = False, set[str]()
    for node in ast.walk(module):
        match node:
            case ast.Attribute(value=ast.Name(id="torch"), attr="compile"):
                names_compiler = True
            case ast.ImportFrom(module="torch", names=names) if any(each.name == "compile" for each in names):
                names_compiler = True
            case ast.Constant(value=str(text)) if text.startswith("--") and "compile" in text:
                flags.add(text)
    return names_compiler and (not flags or any(each.partition("=")[0] in flags for each in arguments))


def preload(command: Sequence[str], modules: Sequence[str]) -> list[str]:
    """Import the modules and the script's imports. Returns one line per failure, for a warning: the worker fails again
    with the full traceback."""
    split = split_command(command)
    sys.path[0] = import_root(split)
    failures = [line for name in modules if (line := _run_import(f"import {name}", name))]
    path = source_of(command)
    if path is None:
        return failures
    try:
        module = ast.parse(Path(path).read_bytes(), path)
    except (OSError, SyntaxError, ValueError) as error:
        return [*failures, f"{path}: {error}"]
    failures += (line for item in top_level_imports(module) if (line := _run_import(ast.unparse(item), path)))
    if "torch" in sys.modules:
        later = imported_by_torch(module, split.arguments)
        failures += (line for name in later if (line := _run_import(f"import {name}", path)))
    return failures


def imported_by_torch(module: ast.Module, arguments: Sequence[str]) -> Iterator[str]:
    """What torch would import only when the module's code runs. Import each before asking for the next."""
    if names_optimizer(module):
        yield _BY_OPTIMIZERS
    if compiles(module, arguments):
        yield _BY_COMPILER
        if _BY_COMPILER in sys.modules:  # If not, finding the patterns would import what has just failed.
            yield from _modules_of(_PATTERNS_OF_COMPILER)


def _modules_of(package: str) -> Iterator[str]:
    """The modules of the package; none if this torch lacks it."""
    with suppress(ImportError):
        spec = importlib.util.find_spec(package)
        for module in pkgutil.iter_modules(spec.submodule_search_locations if spec else []):
            yield f"{package}.{module.name}"


def _run_import(statement: str, place: str) -> str | None:
    """Run one import statement: `from x import y` also resolves names that a package imports lazily."""
    if statement.startswith("from __future__ "):
        return None
    try:
        exec(compile(statement, f"<preload of {place}>", "exec", dont_inherit=True), {"__name__": "preload"})
    except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code; reported, and raised again in the worker
        return f"{statement}: {type(error).__name__}: {error}"
    return None


def why_not_to_fork() -> str | None:
    """Why forking this process would be unsafe now; None if it is safe."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"preloading left {threads} threads"
    if is_cuda_initialized():
        return "preloading initialized CUDA, which a fork cannot use"
    return None


def is_cuda_initialized() -> bool:
    """Has any library of this process initialized the CUDA driver, or torch that of ROCm? CUDA's itself is asked, if it
    is loaded.

    Every call but cuInit returns CUDA_ERROR_NOT_INITIALIZED before (CUDA Driver API, "Initialization").
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _CUDA_NOT_INITIALIZED
    except (OSError, AttributeError):
        return False
