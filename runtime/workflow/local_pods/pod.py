"""Pods as processes of this machine: started at most once, isolated from each other, found again after a crash.

The launcher asks a `runner` to start them; `isolation` says which folders a pod has for itself. Where the kernel
allows no namespaces, the folders that a template declares are rewritten in the pod's command instead.
"""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from everstep.runtime.system import atomic
from everstep.runtime.workflow.artifacts.inside import resolve_inside
from everstep.runtime.workflow.engine.containers import has_several_containers, pod_containers
from everstep.runtime.workflow.local_pods import isolation
from everstep.runtime.workflow.local_pods.inherited_variables import is_own_step
from everstep.runtime.workflow.local_pods.interpreter import interpreter_paths
from everstep.runtime.workflow.local_pods.sandbox import Sandbox, private_folders
from everstep.runtime.workflow.local_pods.spawner import RESULT_BYTES
from everstep.runtime.workflow.local_pods.volumes import SECRETS_FOLDER
from everstep.runtime.workflow.manifest.environment import ContainerCommand
from everstep.runtime.workflow.manifest.fields import list_at

MARK_VARIABLE = "EVERSTEP_POD_MARK"
SCRIPT_PATH = "/argo/staging/script"
"""Where a script template finds its source, as on Argo."""
NOT_STARTED = 64
"""Exit code of a container whose command is not there, or whose output is a directory, as Argo's emissary gives it."""
REPORT_BYTES = 8 << 20
"""Of the report of several containers."""
UNWRITABLE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Errors after which the run can be resumed once there is room; any other error of a pod's files is its own."""
NO_MOUNTS: Mapping[str, tuple[str, bool]] = MappingProxyType({})
NO_STAGED: Mapping[str, str] = MappingProxyType({})
_decode_report = msgspec.json.Decoder(list[tuple[str, int, str]]).decode


class PodError(OSError):
    """The pod could not be started."""


class Folders(NamedTuple):
    """Folders of this machine in which a run's containers begin."""

    launcher: Path
    """Where the launcher was started."""
    chosen: Path | None = None
    """Of the person who runs it, for all containers but those of Everstep's own steps; None: none."""

    def begin(self, container: Mapping[str, Any], command: Sequence[str]) -> str:
        """Where a container begins: in its workingDir; without one, or with a relative one, at `/`, as in most images.

        One of Everstep's own steps begins where the launcher does, as its parameters are paths of this machine; so
        does every container where the kernel allows no namespaces, as no pod has a `/` of its own there.
        """
        own = self.launcher if is_own_step(command) else self.chosen
        start = own or (Path("/") if has_namespaces() else self.launcher)
        folder = str(container.get("workingDir") or "")
        return os.path.join(start, folder) if folder else str(start)


@dataclass(frozen=True)
class Pod:
    """One pod: `folder` is runs/NAME/pods/ID. Invariant: it is started at most once, by the holder of the claim."""

    folder: Path
    log: Path

    @property
    def exit_file(self) -> Path:
        """Has the exit code once the command is over."""
        return self.folder / "exit"

    def start_request(
        self,
        template: Mapping[str, Any],
        container_command: ContainerCommand,
        folders: Folders,
        captures: bool = False,
        mounts: Mapping[str, tuple[str, bool]] = NO_MOUNTS,
        staged_paths: Mapping[str, str] = NO_STAGED,
        sandbox: Sandbox | None = None,
    ) -> dict[str, Any]:
        """The request with which the runner starts the command in a session of its own.

        `captures`: keep its standard output for `result`. `mounts`: volumes by path; where containers differ, main's.
        `staged_paths`: where several containers find the folders from which each mounts its own. `sandbox`: its walls.
        Raises PodError when it cannot be started, BadPathError for an input artifact that leads out of its volume.
        """
        command = list(container_command.command)
        environment = {**container_command.environment, MARK_VARIABLE: str(self.folder)}
        check_command(command[0], environment.get("PATH"))
        pod_folders = list(filter(None, folders))
        folder = folders.begin(template.get("container") or template.get("script") or {}, command)
        words = [*command, *container_command.environment.values()]
        several = has_several_containers(template)
        if several:
            words += _container_words(json.loads(self.spec_file.read_text()))
        root = self._make_root(template, words, folder, [*pod_folders, self._run_folder], mounts, sandbox)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        is_isolated = has_namespaces()
        moved_folders = {} if is_isolated else self._move_folders(template, folder, root, staged_paths)
        if template.get("script"):
            source = isolation.rewrite_paths(str(template["script"].get("source") or ""), moved_folders)
            self._write_script(root, SCRIPT_PATH, source)
        command = [isolation.rewrite_paths(word, moved_folders) for word in command]
        shut_in = (
            sandbox.spawner_request(self._run_folder, self.handoff_folder, pod_folders, several) if sandbox else None
        )
        return {
            "claim": str(self.claim_file), "exit": str(self.exit_file), "log": str(self.log), "command": command,
            "cwd": str(folders.launcher) if several else folder,
            "environment": environment,
            "captures": captures, "namespace": is_isolated,
            "sandbox": shut_in,
            **(_with_staged_volumes(root, mounts, staged_paths) if several else root)._asdict(),
        }  # fmt: skip

    def _move_folders(
        self, template: Mapping[str, Any], folder: str, root: isolation.Plan, staged_paths: Mapping[str, str]
    ) -> dict[str, str]:
        """Make the folders of a pod without a root of its own and rewrite its containers; returns the moved paths."""
        for path in _declared_paths(template, folder):
            root.host_path(path).parent.mkdir(parents=True, exist_ok=True)
        moved_folders = {folder: root.root + folder for folder in root.folders if folder != "/"}
        moved_folders |= {path: path for path in root.binds}
        moved_folders |= {path: source for path, (source, _) in root.mounts.items()}
        if has_several_containers(template):
            spec, sources = (
                json.loads(self.spec_file.read_text()),
                {place: source for source, place in staged_paths.items()},
            )
            for kind in ("init", "main", "sidecars"):
                spec[kind] = [_rewrite_container(container, moved_folders, sources) for container in spec[kind]]
            self.spec_file.write_text(json.dumps(spec))
        return moved_folders

    @property
    def spec_file(self) -> Path:
        """The file from which `podrun` or `httprun` reads its task."""
        return self.handoff_folder / "spec.json"

    @property
    def handoff_folder(self) -> Path:
        """The folder of files that the pod's own program reads and writes: all that a sandbox shows of `folder`."""
        return self.folder / "told"

    def started_process(self, answer: str) -> tuple[int, int]:
        """(pid, start time) of the process that has the claim, by the runner's answer. Raises PodError."""
        process = self.claiming_process()
        if answer not in ("started", "late") or process is None:
            raise PodError(answer)
        return process

    def artifact_path(self, entry: Mapping[str, Any]) -> Path:
        """Where an input artifact is put before it is bound into the pod."""
        return self.folder / "artifacts" / str(entry["name"])

    def _write_script(self, root: isolation.Plan, path: str, text: str) -> None:
        place = root.host_path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(0o755)

    def _make_root(
        self, template: Mapping[str, Any], words: list[str], folder: str, keep: Sequence[Path],
        mounts: Mapping[str, tuple[str, bool]], sandbox: Sandbox | None,
    ) -> isolation.Plan:  # fmt: skip
        """Plan and make the pod's root; the plan is written down for `pod_outputs`. `folder`: where it begins."""
        inputs: dict[str, tuple[str, bool]] = {}
        for entry in list_at(template, "inputs", "artifacts"):
            path, place = str(entry.get("path") or ""), self.artifact_path(entry)
            volume = next((at for at in mounts if path.startswith(f"{at}/")), None)
            if volume is not None and place.exists():
                target = resolve_inside(Path(mounts[volume][0]), path[len(volume) + 1 :])
                target.parent.mkdir(parents=True, exist_ok=True)
                _move(place, target)
            elif place.exists():
                inputs[path] = (str(place), False)
        absent = _missing_working_dirs(template) if has_namespaces() else []
        plan = isolation.plan_root(
            self.folder / "root",
            isolation.PodPaths(
                _declared_paths(template, folder), {**mounts, **inputs}, [*words, *_script_texts(template)]
            ),
            [] if sandbox else [*map(str, keep), *interpreter_paths(isolation.ALWAYS_PRIVATE)],
            has_namespaces(),
            absent,
            private_folders() if sandbox else (),
        )
        Path(plan.root).mkdir(parents=True, exist_ok=True)
        for place in map(plan.host_path, absent):
            if not place.exists():
                place.mkdir(parents=True)
        facts = {"cwd": folder, "sandbox": sandbox is not None}
        atomic.replace(self.folder / "plan.json", json.dumps({**facts, "plan": plan._asdict()}))
        return plan

    def forget_secrets(self) -> None:
        """Remove the Secrets of an ended pod, in volumes and in variables of its containers."""
        shutil.rmtree(self.folder / SECRETS_FOLDER, ignore_errors=True)
        self.spec_file.unlink(missing_ok=True)

    @property
    def _run_folder(self) -> Path:
        """The run's folder."""
        return self.folder.parent.parent

    @property
    def claim_file(self) -> Path:
        """The file that names the process of the pod. It is linked into place, so that only one process can."""
        return self.folder / "claim"

    def claiming_process(self) -> tuple[int, int] | None:
        """(pid, start time) of the process that ran or runs the command; None before there is one."""
        try:
            pid, began = self.claim_file.read_text().split()
        except FileNotFoundError:
            return None
        return int(pid), int(began)

    @property
    def stdout(self) -> Path:
        """The file with its captured standard output."""
        return self.folder / "exit.stdout"

    @property
    def stdout_of_several(self) -> Path:
        """The same for a pod of several containers, written by `podrun`."""
        return self.handoff_folder / "stdout"

    @property
    def report_file(self) -> Path:
        """The file in which `podrun` reports how each container ended."""
        return self.handoff_folder / "containers.json"

    def container_exits(self) -> list[tuple[str, int, str]]:
        """(name, exit code, the container whose failure kept it from running) of each of several containers."""
        try:
            return _decode_report(_read_tail(self.report_file, REPORT_BYTES))
        except (OSError, msgspec.DecodeError):
            return []

    def exit_code(self) -> int | None:
        """The recorded exit code; None when the pod vanished without one."""
        try:
            return int(self.exit_file.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def result(self) -> str:
        """Its standard output as `outputs.result`: the last 256 KiB, without one newline at the end."""
        for path in (self.stdout, self.stdout_of_several):
            with suppress(OSError):
                return _read_tail(path, RESULT_BYTES).decode(errors="replace").removesuffix("\n")
        return ""


def _with_staged_volumes(
    root: isolation.Plan, volumes: Mapping[str, tuple[str, bool]], staged_paths: Mapping[str, str]
) -> isolation.Plan:
    """The plan with volumes mounted once at their staged paths; containers mount them from there."""
    at = {os.path.normpath(path) for path in volumes}
    others = {path: mount for path, mount in root.mounts.items() if path not in at}
    return root._replace(mounts={**others, **{place: (source, False) for source, place in staged_paths.items()}})


def _rewrite_container(
    container: Mapping[str, Any], moved_folders: Mapping[str, str], sources: Mapping[str, str]
) -> dict[str, Any]:
    """The container with its paths rewritten for a pod without a root of its own; mounts become their sources."""
    own = {path: sources[place] for path, (place, _) in container["mounts"].items()}
    return json.loads(isolation.rewrite_paths(json.dumps({**container, "mounts": {}}), {**moved_folders, **own}))


def _read_tail(path: Path, limit: int) -> bytes:
    """The end of a file that a pod wrote. Raises OSError, also for a link or special file in its place."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path}: is not a file")
        file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
        return file.read(limit)


def _declared_paths(template: Mapping[str, Any], folder: str) -> list[str]:
    """Paths of files that a template names; a relative one begins in the container's working `folder`."""
    paths = [(entry.get("valueFrom") or {}).get("path") for entry in list_at(template, "outputs", "parameters")]
    for side in ("inputs", "outputs"):
        paths += [entry.get("path") for entry in list_at(template, side, "artifacts")]
    return [os.path.join(folder, str(path)) for path in paths if path]


def _move(place: Path, target: Path) -> None:
    """Move a file or folder, also to another file system. As on Argo, it replaces a file, but no folder with files."""
    try:
        place.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".load-") as folder:
            Path(shutil.move(place, Path(folder, "moved"))).rename(target)


def _container_words(spec: Mapping[str, Any]) -> Iterator[str]:
    """Words of the commands and variables of several containers, by the spec of `podrun`."""
    for container in (container for kind in ("init", "main", "sidecars") for container in spec[kind]):
        yield from container["command"]
        yield from container["environment"].values()


def _script_texts(template: Mapping[str, Any]) -> Iterator[str]:
    """Texts besides the command that may mention folders of the machine."""
    if template.get("script"):
        yield str(template["script"].get("source") or "")


def _missing_working_dirs(template: Mapping[str, Any]) -> list[str]:
    """Working folders of containers that this machine lacks: they are made, as a cluster's node does."""
    every = [container for some in pod_containers(template).values() for container in some]
    folders = {os.path.normpath(str(container.get("workingDir") or "/")) for container in every}
    return sorted(folder for folder in folders if folder.startswith("/") and not os.path.isdir(folder))


def check_command(command: str, path: str | None) -> None:
    """Raise PodError, in the words of Argo's emissary, for a command that does not exist."""
    if "\0" in command:
        raise PodError(f"failed to find name in PATH: exec: {json.dumps(command)}: invalid argument")
    if shutil.which(command, path=path) is not None:
        return
    why = "executable file not found in $PATH"
    if "/" in command:
        why = "permission denied" if Path(command).is_file() else f"stat {command}: no such file or directory"
    raise PodError(f"failed to find name in PATH: exec: {json.dumps(command)}: {why}")


@lru_cache(maxsize=1)
def has_namespaces() -> bool:
    """Whether the kernel allows mount namespaces, as tried in a child process."""
    code = "import ctypes, os; os._exit(ctypes.CDLL(None).unshare(0x20000 | (os.getuid() and 0x10000000)) != 0)"
    return subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False, capture_output=True).returncode == 0
