"""What a pod left behind: output parameters and artifacts, found by the plan of its root. Errors have Argo's words."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from everstep.runtime.workflow.artifacts import artifacts
from everstep.runtime.workflow.artifacts.repository import Repository
from everstep.runtime.workflow.expressions.values import parameter_text
from everstep.runtime.workflow.local_pods import isolation

PARAMETER_BYTES = 8 << 20
"""Of an output parameter. Kubernetes takes 1.5 MiB of a whole workflow."""
OUTPUTS_FOLDER = "/var/run/argo/outputs"
"""Where Argo keeps outputs on their way; its messages name it."""


class PodOutputs(NamedTuple):
    """What a pod left behind."""

    parameters: dict[str, str]
    artifacts: dict[str, str]
    """Key of each output artifact in the repository."""
    said: str = ""
    """Why the container counts as failed with 64 although its command did not."""
    missing: str = ""
    """Which outputs are not there, in the words of Argo's wait container."""


class _MissingError(Exception):
    """An output is missing or cannot be kept: why."""


class _PodRoot(NamedTuple):
    """The root of a pod that has ended."""

    plan: isolation.Plan
    cwd: str
    sandbox: bool

    def read_parameter(self, entry: Mapping[str, Any]) -> str | None:
        """The text of an output parameter; None: a folder is in its place. Raises _MissingError."""
        source = entry.get("valueFrom") or {}
        path, default = os.path.join(self.cwd, source["path"]), source.get("default")
        place = _left_path(self.plan, path)
        if self.sandbox and not _is_own_path(self.plan, place):
            raise _MissingError(f"{source['path']} is outside the sandbox")
        if os.path.isdir(place):  # Path's own raises for a name that is too long.
            return None
        if "default" not in source and os.path.exists(place) and not os.path.isfile(place):
            raise _MissingError(f"{source['path']} is not a regular file")
        try:
            text = _read_text(place)
        except OSError:
            if "default" in source:
                return parameter_text(default)
            copy_path = (
                f"/mainctrfs{path}"
                if _is_in_volume(self.plan, path)
                else f"{OUTPUTS_FOLDER}/parameters{source['path']}"
            )
            raise _MissingError(f"open {copy_path}: no such file or directory") from None
        if text is None:
            most = PARAMETER_BYTES >> 20
            raise _MissingError(f"{source['path']} is larger than {most} MiB; make it an artifact")
        return text

    def save_artifact(self, entry: Mapping[str, Any], key: str, repository: Repository) -> bool:
        """Save an output artifact. False: it is optional and missing. Raises _MissingError."""
        path = os.path.join(self.cwd, str(entry["path"]))
        if self.sandbox and not _is_own_path(self.plan, self.plan.host_path(path)):
            raise _MissingError(f"{path} is outside the sandbox")
        place, below = _left_path(self.plan, path), _is_in_volume(self.plan, path)
        if not os.path.exists(place):
            if entry.get("optional"):
                return False
            missing = f"stat /mainctrfs{path}" if below else f"open {OUTPUTS_FOLDER}/artifacts{path}.tgz"
            raise _MissingError(f"{missing}: no such file or directory")
        if not place.is_file() and not place.is_dir():
            raise _MissingError(f"{path} is not a regular file or directory")
        try:
            repository.save(place, entry, key, below)
        except artifacts.ArtifactError as error:
            raise _MissingError(str(error)) from None
        return True


def collect(folder: Path, outputs: Mapping[str, Any], keys: Mapping[str, str], repository: Repository) -> PodOutputs:
    """Collect a pod's outputs: parameters up to the first missing one, and artifacts, saved under those keys."""
    pod_outputs = PodOutputs({}, {})
    if not outputs:
        return pod_outputs
    plan = json.loads((folder / "plan.json").read_text())
    root = _PodRoot(isolation.Plan(**plan["plan"]), plan["cwd"], plan["sandbox"])
    message = missing_parameter = missing_artifacts = ""
    try:
        for entry in outputs.get("parameters") or []:
            text = root.read_parameter(entry)
            if text is None:
                message = message or _directory_error(entry["valueFrom"]["path"])
            pod_outputs.parameters[entry["name"]] = (text or "").removesuffix("\n")
    except _MissingError as error:
        missing_parameter = str(error)
    for entry in outputs.get("artifacts") or []:
        try:
            if root.save_artifact(entry, keys[str(entry["name"])], repository):
                pod_outputs.artifacts[str(entry["name"])] = keys[str(entry["name"])]
        except _MissingError as error:
            missing_artifacts += f"{error}; "
    missing = missing_parameter or missing_artifacts
    return pod_outputs._replace(said=message, missing=f"wait: Error (exit code 64): {missing}" if missing else "")


def _left_path(plan: isolation.Plan, path: str) -> Path:
    """The machine's path of what the pod left at `path`; links to what the pod does not see lead to no file."""
    real = os.path.realpath(plan.host_path(path.replace("\0", "?")))  # No file's name has a zero byte.
    visible_folders = [
        os.path.realpath(folder) for folder in (plan.root, *(source for source, _ in plan.mounts.values()), *plan.binds)
    ]
    if any(real == folder or real.startswith(f"{folder.rstrip('/')}/") for folder in visible_folders):
        return Path(real)
    return Path(os.devnull, "nothing")  # A file cannot exist below /dev/null.


def _read_text(place: Path) -> str | None:
    """The text of a file; None: it is too large. Raises OSError for what is not a file: opening a pipe may block."""
    if not place.is_file():
        raise FileNotFoundError(place)
    with place.open("rb") as file:
        data = file.read(PARAMETER_BYTES + 1)
    return None if len(data) > PARAMETER_BYTES else data.decode(errors="replace")


def _is_own_path(plan: isolation.Plan, place: Path) -> bool:
    """Whether the real path is in the pod's own folders or volumes."""
    real_path = os.path.realpath(place)
    own = [plan.root, *(source for source, _ in plan.mounts.values())]
    return any(real_path == folder or real_path.startswith(f"{folder}/") for folder in map(os.path.realpath, own))


def _is_in_volume(plan: isolation.Plan, path: str) -> bool:
    """Whether the path is below a mounted volume. Input artifacts are mounts of another kind."""
    return any(path.startswith(f"{at}/") and "/artifacts/" not in source for at, (source, _) in plan.mounts.items())


def _directory_error(path: str) -> str:
    destination = f"{OUTPUTS_FOLDER}/parameters/{path}"
    return f"failed to copy {path} to {destination}: write {destination}: copy_file_range: is a directory"
