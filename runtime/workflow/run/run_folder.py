"""The folder of a run: RUNS/NAME. It belongs to one manifest; one launcher at a time holds its lock."""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from everstep.runtime import faults
from everstep.runtime.system import atomic, file_lock
from everstep.runtime.workflow.local_pods.pod import UNWRITABLE_ERRNOS
from everstep.runtime.workflow.local_pods.sandbox import Sandbox
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.parse import NAME, NO_LIBRARY, ManifestError

RESERVED = ("artifacts", "store")
"""Folders beside the run folders."""
LOCK_WAIT_S = 1.0
"""How long to wait for the lock: `launcher_pid` takes it for a moment, too."""
MAX_BASE, RANDOM = 58, 5
"""The most characters of `generateName` in a name, so that 5 random ones more fit into a label."""
ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""What Kubernetes takes random characters from: no vowels, and nothing that is read as something else."""


class CannotWriteError(OSError):
    """The run's folder cannot be written: one line with the mend. Pods run on, and the run can be resumed."""


def generated_name(base: str) -> str:
    """A name from `metadata.generateName`, cut as Kubernetes cuts it (API conventions, "Idempotency")."""
    return base[:MAX_BASE] + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM))


def check_name(name: str) -> None:
    """Raise ManifestError for what Kubernetes would not take as a workflow's name."""
    if name in RESERVED:
        raise ManifestError(f"name {name!r}: that folder is shared by all runs; choose another name")
    if not NAME.fullmatch(name) or len(name) > 63:
        raise ManifestError(f"name {name!r}: use at most 63 of a-z, 0-9 and -, a letter or digit at both ends")


def ensure_folder(runs: Path, name: str, source: Mapping[str, Any], sandbox: Sandbox | None = None) -> Path:
    """The folder for that run, made if it is new.

    Raises ManifestError: not a name, a run of another manifest, or a run with other sandbox flags.
    """
    check_name(name)
    folder = runs / name
    manifest_path = folder / "manifest.json"
    if manifest_path.exists() and json.loads(manifest_path.read_text())["spec"] != source["spec"]:
        raise ManifestError(f"name {name}: {folder} has a run of another manifest; choose another name")
    if manifest_path.exists() and read_inputs(folder).sandbox != sandbox:
        raise ManifestError(f"name {name}: {folder} has a run with other sandbox flags; give the same ones")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_inputs(folder: Path, source: Mapping[str, Any], run_inputs: "RunInputs") -> None:
    """Write the manifest and the other inputs, once."""
    manifest_path = folder / "manifest.json"
    if manifest_path.exists():
        return
    inputs = {
        "objects": list(run_inputs.library.objects.values()),
        "images": {name: list(command) for name, command in run_inputs.library.images.items()},
        "path": [str(root.absolute()) for root in run_inputs.path],
        "variables": list(run_inputs.variables),
        "sandbox": asdict(run_inputs.sandbox) if run_inputs.sandbox else None,
        "work_dir": str(run_inputs.work_dir.absolute()) if run_inputs.work_dir else None,
    }
    _make_private(folder / "beside.json").write_text(json.dumps(inputs, indent=1))
    with atomic.replacing(manifest_path) as file:
        file.write(json.dumps(source, indent=1).encode())
        faults.point("executor.before_manifest")
    faults.point("executor.after_manifest")


class RunInputs(NamedTuple):
    """The inputs of a run besides its manifest."""

    library: Library = NO_LIBRARY
    path: tuple[Path, ...] = ()
    """Folders of programs."""
    variables: tuple[str, ...] = ()
    """Names of the launcher's own variables that pods get besides the usual ones."""
    sandbox: Sandbox | None = None
    work_dir: Path | None = None
    """Where containers begin that name no workingDir."""


def read_inputs(folder: Path) -> RunInputs:
    """The inputs of the run in that folder."""
    inputs_path = folder / "beside.json"
    if not inputs_path.exists():
        return RunInputs()
    inputs = json.loads(inputs_path.read_text())
    path, variables = tuple(map(Path, inputs["path"])), tuple(inputs.get("variables", ()))
    shut = inputs.get("sandbox")
    sandbox = Sandbox(shut["network"], tuple(shut["writable"])) if shut else None
    work_dir = Path(inputs["work_dir"]) if inputs.get("work_dir") else None
    return RunInputs(Library.from_objects(inputs["objects"], inputs["images"]), path, variables, sandbox, work_dir)


def _make_private(path: Path) -> Path:
    """Make the file with mode 0600: it may hold secrets."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    return path


@contextmanager
def explain_write_errors(runs: Path, name: str) -> Iterator[None]:
    """Raises CannotWriteError where nothing can be written any more: the disk is full, or failed."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE_ERRNOS:
            raise
        mend = f"free some space, then resume the run: everstep workflow resume {name} --runs {runs}"
        raise CannotWriteError(f"{error.filename or runs / name}: {error.strerror}; {mend}") from error


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the run's lock. Raises ManifestError if another process holds it."""
    path = folder / "lock"
    try:
        descriptor = file_lock.open_locked(path, os.O_RDWR | os.O_CREAT, wait_s=LOCK_WAIT_S, mode=0o644)
    except BlockingIOError:
        raise ManifestError(f"name {folder.name}: process {path.read_text() or 'unknown'} already runs it") from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    try:
        yield
    finally:
        os.close(descriptor)


def launcher_pid(folder: Path) -> str | None:
    """The pid of the process that runs it; None when there is none."""
    with (folder / "lock").open("rb") as file:
        try:
            file_lock.lock(file.fileno(), is_shared=True, wait_s=0)
        except BlockingIOError:
            return file.read(20).decode()
        return None
