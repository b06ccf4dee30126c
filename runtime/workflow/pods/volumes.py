"""A pod's volumes as folders of the run: emptyDir, claims, ConfigMaps, Secrets, projections, folders of the machine."""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from everstep.runtime.workflow.artifacts.inside import BadPathError, inside
from everstep.runtime.workflow.manifest.fields import listed
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.volume_sources import Shown, files_of, is_secret

SECRETS = "secrets"
"""The folder of a pod's that has its volumes with something of a Secret. It goes when the pod has ended."""
DATA = "..data"
"""Where the kubelet has the files of a ConfigMap or Secret, so that all of them change at once."""
KEPT = ("/dev", "/proc", "/sys")
"""A mount below these stays the machine's own: a volume in memory at /dev/shm is the machine's shared memory."""


class Mount(NamedTuple):
    """A folder or file that the pod sees at a path."""

    source: str
    read_only: bool = False


STAGED = "/argo/staging/volumes"
"""Where a pod of several containers has the folders from which each mounts its own."""


class Mounted(NamedTuple):
    """The volumes of a pod's containers."""

    own: dict[str, dict[str, Mount]]
    """By container, by path."""

    @property
    def together(self) -> dict[str, Mount]:
        """By path; where containers differ, as main has it."""
        found: dict[str, Mount] = {}
        for name in sorted(self.own, key=lambda name: name == "main"):
            found |= self.own[name]
        return found

    @property
    def staged(self) -> dict[str, str]:
        """Where in the pod each of their folders is."""
        sources = sorted({mount.source for own in self.own.values() for mount in own.values()})
        return {source: f"{STAGED}/{number}" for number, source in enumerate(sources)}


def mounts(
    containers: Sequence[Mapping[str, Any]],
    volumes: Sequence[Mapping[str, Any]],
    pod: Path,
    claims: Path,
    library: Library,
    facts: Mapping[str, str],
) -> Mounted:
    """Where each volume mount of these containers comes from; its folders are made.

    Raises NotThereError, and BadPathError for a claim, a subPath or a file's name that leads out of its folder.
    """
    known = {str(volume.get("name")): volume for volume in volumes}
    shown = Shown(library, facts, containers)
    every = Mounted({})
    for container in containers:
        found: dict[str, Mount] = {}
        every.own[str(container.get("name"))] = found
        for mount in listed(container, "volumeMounts"):
            path, name = str(mount.get("mountPath")), str(mount.get("name"))
            if path.startswith(KEPT) or name not in known:
                continue
            folder, fixed = _folder(known[name], pod, claims, shown)
            below = str(mount.get("subPath") or "")
            source = folder.resolve() if below in ("", ".") else inside(folder, below)
            if not source.exists():
                source.mkdir(parents=True)
            found[path.rstrip("/")] = Mount(str(source), bool(mount.get("readOnly")) or fixed)
    return every


def _folder(volume: Mapping[str, Any], pod: Path, claims: Path, shown: Shown) -> tuple[Path, bool]:
    """(the folder, whether nobody may write there)."""
    if volume.get("hostPath"):
        return Path(str(volume["hostPath"].get("path"))), False
    if volume.get("persistentVolumeClaim"):
        folder = inside(claims, str(volume["persistentVolumeClaim"].get("claimName")))
        folder.mkdir(parents=True, exist_ok=True)
        return folder, bool(volume["persistentVolumeClaim"].get("readOnly"))
    above = pod / (SECRETS if is_secret(volume) else "volumes")
    above.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = inside(above, str(volume["name"]))
    made = not folder.exists()
    folder.mkdir(exist_ok=True)
    if made:
        try:
            _fill(folder, volume, shown)
        except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
            raise BadPathError(f"volume {volume['name']}: {error.filename} is a file and a folder") from None
    return folder, not any(isinstance(volume.get(kind), Mapping) for kind in ("emptyDir", "ephemeral"))


def _fill(folder: Path, volume: Mapping[str, Any], shown: Shown) -> None:
    """Write the files as the kubelet does: below ..data, with a link for each name at the top.

    A Secret's folder is for nobody else on this machine to enter, and its files are only to be read, unless they have
    a mode of their own.
    """
    data = folder / DATA
    given = next((volume[kind] for kind in ("configMap", "secret", "projected", "downwardAPI") if volume.get(kind)), {})
    own = {str(item["path"]): item["mode"] for item in listed(given, "items") if item.get("mode") is not None}
    secret = is_secret(volume)
    if secret:
        folder.chmod(0o700)
    mode = given.get("defaultMode", 0o400 if secret else 0o644)
    for name, text in files_of(volume, shown):
        top = name.split("/")[0]
        if top.startswith(".."):
            raise BadPathError(f"volume {volume['name']}: {name!r}: a file's name does not begin with ..")
        place = inside(data, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)  # Of two sources the later counts.
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            os.fchmod(file.fileno(), int(own.get(name, mode)) & 0o7777)
        if not (folder / top).is_symlink():
            (folder / top).symlink_to(f"{DATA}/{top}")


def claimed(spec: Mapping[str, Any], workflow: str) -> list[dict[str, Any]]:
    """spec.volumeClaimTemplates as volumes of claims that are the workflow's own."""
    names = [str((one.get("metadata") or {}).get("name")) for one in listed(spec, "volumeClaimTemplates")]
    return [{"name": name, "persistentVolumeClaim": {"claimName": f"{workflow}-{name}"}} for name in names]


def forget_claims(spec: Mapping[str, Any], workflow: str, claims: Path) -> None:
    """The workflow has ended: its own claims go."""
    for volume in claimed(spec, workflow):
        with suppress(BadPathError):  # None of its pods could have had it.
            shutil.rmtree(inside(claims, volume["persistentVolumeClaim"]["claimName"]), ignore_errors=True)
