"""A pod's volumes as folders of the run: emptyDir, claims, ConfigMaps, Secrets, projections, folders of the machine."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from everstep.runtime.workflow.environment import WHOLE, known_field, resource
from everstep.runtime.workflow.fields import listed
from everstep.runtime.workflow.inside import BadPathError, inside
from everstep.runtime.workflow.library import Library, NotThereError
from everstep.runtime.workflow.schema import BEYOND, Problem, Where

KINDS = (
    "emptyDir", "ephemeral", "configMap", "secret", "projected", "downwardAPI", "persistentVolumeClaim", "hostPath",
)  # fmt: skip
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


class Shown(NamedTuple):
    """What files of volumes are made of."""

    library: Library
    facts: Mapping[str, str]
    """What fieldRef reads of the pod."""
    containers: Sequence[Mapping[str, Any]]
    """Of which resourceFieldRef reads."""


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
    above = pod / (SECRETS if _is_secret(volume) else "volumes")
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
    secret = _is_secret(volume)
    if secret:
        folder.chmod(0o700)
    mode = given.get("defaultMode", 0o400 if secret else 0o644)
    for name, text in _files(volume, shown):
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


def _is_secret(volume: Mapping[str, Any]) -> bool:
    return any(one.get("secret") for one in [volume, *listed(volume, "projected", "sources")])


def _files(volume: Mapping[str, Any], shown: Shown) -> Iterator[tuple[str, str]]:
    """Names and texts of what a ConfigMap, a Secret, the pod itself or a projection shows."""
    sources = listed(volume, "projected", "sources") or [volume]
    for source in sources:
        for field, kind, key in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")):
            given = source.get(field)
            if given is None:
                continue
            name = given.get(key) or given.get("name")
            values = shown.library.values(kind, {"name": name, "optional": given.get("optional")})
            items = {str(item["key"]): str(item["path"]) for item in listed(given, "items")}
            for one, text in values.items():
                if not items or one in items:
                    yield items.get(one, one), text
        for item in listed(source, "downwardAPI", "items"):
            yield str(item["path"]), _told(item, shown)


def _told(item: Mapping[str, Any], shown: Shown) -> str:
    """What the pod is told of itself."""
    if item.get("fieldRef"):
        return shown.facts.get(str(item["fieldRef"].get("fieldPath")), "")
    reference = item.get("resourceFieldRef") or {}
    named = (one for one in shown.containers if one.get("name") == reference.get("containerName"))
    return resource(reference, next(named, {}))


def claimed(spec: Mapping[str, Any], workflow: str) -> list[dict[str, Any]]:
    """spec.volumeClaimTemplates as volumes of claims that are the workflow's own."""
    names = [str((one.get("metadata") or {}).get("name")) for one in listed(spec, "volumeClaimTemplates")]
    return [{"name": name, "persistentVolumeClaim": {"claimName": f"{workflow}-{name}"}} for name in names]


def forget_claims(spec: Mapping[str, Any], workflow: str, claims: Path) -> None:
    """The workflow has ended: its own claims go."""
    for volume in claimed(spec, workflow):
        with suppress(BadPathError):  # None of its pods could have had it.
            shutil.rmtree(inside(claims, volume["persistentVolumeClaim"]["claimName"]), ignore_errors=True)


def _items(volume: Mapping[str, Any]) -> Iterator[Any]:
    """Those of its ConfigMaps and Secrets."""
    for source in (volume, *listed(volume, "projected", "sources")):
        for field in ("configMap", "secret"):
            yield from listed(source, field, "items")


def _is_file(item: Any) -> bool:
    return isinstance(item, Mapping) and all(isinstance(item.get(name), str) for name in ("key", "path"))


def problems(volumes: Sequence[Mapping[str, Any]], library: Library, where: Where) -> Iterator[Problem]:
    """Volumes of a kind that this machine has not, ConfigMaps and Secrets that are not there."""
    for index, volume in enumerate(volumes):
        kinds = [kind for kind in volume if kind != "name" and volume[kind] is not None]
        for kind in kinds:
            if kind not in KINDS:
                yield Problem((*where, index, kind), BEYOND)
        for item in listed(volume, "downwardAPI", "items"):
            path = str((item.get("fieldRef") or {}).get("fieldPath") or "metadata.name")
            if path not in WHOLE and not known_field(path):
                yield Problem((*where, index, "downwardAPI"), f"{path} is not known on this machine")
        if any(not _is_file(item) for item in _items(volume)):
            yield Problem((*where, index), "each of its items needs a key and a path, both texts")
            continue
        try:
            if "{{" not in str(volume):
                list(_files(volume, Shown(library, {}, ())))
        except NotThereError as error:
            yield Problem((*where, index), str(error))
