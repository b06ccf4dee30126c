"""A pod's volumes as folders of the run: emptyDir, claims, ConfigMaps, Secrets, projections, folders of the machine."""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from everstep.runtime.workflow.artifacts.inside import BadPathError, resolve_inside
from everstep.runtime.workflow.manifest.fields import list_at, mapping_at
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.volume_sources import VolumeSources, is_secret, volume_files

SECRETS_FOLDER = "secrets"
"""The folder in a pod's folder for volumes that show Secrets. It is removed when the pod has ended."""
DATA_FOLDER = "..data"
"""The folder in which the kubelet keeps the files of a ConfigMap or Secret, so that they change together."""
MACHINE_FOLDERS = ("/dev", "/proc", "/sys")
"""A mount below these stays the machine's own: a volume in memory at /dev/shm is the machine's shared memory."""


class Mount(NamedTuple):
    """A folder or file that the pod sees at a path."""

    source: str
    read_only: bool = False


STAGED_FOLDER = "/argo/staging/volumes"
"""Where a pod of several containers has all volume folders; each container mounts its own from there."""


class PodMounts(NamedTuple):
    """The volumes of a pod's containers."""

    own: dict[str, dict[str, Mount]]
    """Mounts by container name, then by path."""

    @property
    def merged_mounts(self) -> dict[str, Mount]:
        """Mounts of all containers by path; where containers differ, main's count."""
        mounts: dict[str, Mount] = {}
        for name in sorted(self.own, key=lambda name: name == "main"):
            mounts |= self.own[name]
        return mounts

    @property
    def staged_paths(self) -> dict[str, str]:
        """The staged path of each source folder."""
        sources = sorted({mount.source for own in self.own.values() for mount in own.values()})
        return {source: f"{STAGED_FOLDER}/{number}" for number, source in enumerate(sources)}


def resolve_mounts(
    containers: Sequence[Mapping[str, Any]],
    volumes: Sequence[Mapping[str, Any]],
    pod: Path,
    claims: Path,
    library: Library,
    facts: Mapping[str, str],
) -> PodMounts:
    """Resolve the volume mounts of these containers to folders, which are made.

    Raises MissingObjectError, and BadPathError for a claim, a subPath or a file's name that leads out of its folder.
    """
    volumes_by_name = {str(volume.get("name")): volume for volume in volumes}
    sources = VolumeSources(library, facts, containers)
    every = PodMounts({})
    for container in containers:
        mounts: dict[str, Mount] = {}
        every.own[str(container.get("name"))] = mounts
        for mount in list_at(container, "volumeMounts"):
            path, name = str(mount.get("mountPath")), str(mount.get("name"))
            if path.startswith(MACHINE_FOLDERS) or name not in volumes_by_name:
                continue
            folder, is_fixed = _volume_folder(volumes_by_name[name], pod, claims, sources)
            below = str(mount.get("subPath") or "")
            source = folder.resolve() if below in ("", ".") else resolve_inside(folder, below)
            if not source.exists():
                source.mkdir(parents=True)
            mounts[path.rstrip("/")] = Mount(str(source), bool(mount.get("readOnly")) or is_fixed)
    return every


def _volume_folder(volume: Mapping[str, Any], pod: Path, claims: Path, sources: VolumeSources) -> tuple[Path, bool]:
    """Make a volume's folder; returns (folder, whether it is read-only)."""
    if volume.get("hostPath"):
        return Path(str(volume["hostPath"].get("path"))), False
    if volume.get("persistentVolumeClaim"):
        folder = resolve_inside(claims, str(volume["persistentVolumeClaim"].get("claimName")))
        folder.mkdir(parents=True, exist_ok=True)
        return folder, bool(volume["persistentVolumeClaim"].get("readOnly"))
    above = pod / (SECRETS_FOLDER if is_secret(volume) else "volumes")
    above.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = resolve_inside(above, str(volume["name"]))
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    if is_new:
        try:
            _write_files(folder, volume, sources)
        except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
            raise BadPathError(f"volume {volume['name']}: {error.filename} is both a file and a folder") from None
    return folder, not any(isinstance(volume.get(kind), Mapping) for kind in ("emptyDir", "ephemeral"))


def _write_files(folder: Path, volume: Mapping[str, Any], sources: VolumeSources) -> None:
    """Write the files as the kubelet does: below ..data, with a link for each name at the top.

    Only this user can enter a Secret's folder, and its files are read-only, unless the manifest gives them a mode.
    """
    data = folder / DATA_FOLDER
    source = next(
        (volume[kind] for kind in ("configMap", "secret", "projected", "downwardAPI") if volume.get(kind)), {}
    )
    own = {str(item["path"]): item["mode"] for item in list_at(source, "items") if item.get("mode") is not None}
    secret = is_secret(volume)
    if secret:
        folder.chmod(0o700)
    mode = source.get("defaultMode", 0o400 if secret else 0o644)
    for name, text in volume_files(volume, sources):
        top = name.split("/")[0]
        if top.startswith(".."):
            raise BadPathError(f"volume {volume['name']}: {name!r}: a file's name does not begin with ..")
        place = resolve_inside(data, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)  # Of two sources the later counts.
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            os.fchmod(file.fileno(), int(own.get(name, mode)) & 0o7777)
        if not (folder / top).is_symlink():
            (folder / top).symlink_to(f"{DATA_FOLDER}/{top}")


def claim_volumes(spec: Mapping[str, Any], workflow: str) -> list[dict[str, Any]]:
    """spec.volumeClaimTemplates as volumes of claims that are the workflow's own."""
    names = [str(mapping_at(claim, "metadata").get("name")) for claim in list_at(spec, "volumeClaimTemplates")]
    return [{"name": name, "persistentVolumeClaim": {"claimName": f"{workflow}-{name}"}} for name in names]


def remove_claims(spec: Mapping[str, Any], workflow: str, claims: Path) -> None:
    """Remove the workflow's own claims."""
    for volume in claim_volumes(spec, workflow):
        with suppress(BadPathError):  # No pod could have used it.
            shutil.rmtree(resolve_inside(claims, volume["persistentVolumeClaim"]["claimName"]), ignore_errors=True)
