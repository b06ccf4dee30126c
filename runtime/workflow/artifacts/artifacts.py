"""Artifacts between pods: archives under keys in a folder, as Argo keeps them in a bucket.

`save` packs what a pod wrote (tgz, zip or as it is), `load` puts it where the next pod looks for it. Keys are Argo's:
`WORKFLOW/POD/NAME.tgz`. Rules after Argo's documentation ("Configuring Your Artifact Repository", "Artifacts") and
recorded answers.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.runtime.net import web
from everstep.runtime.workflow.artifacts import archives, git, remote
from everstep.runtime.workflow.artifacts.archives import DEFAULT_LIMITS, ArchiveError, UnpackLimits
from everstep.runtime.workflow.artifacts.inside import BadPathError, resolve_inside
from everstep.runtime.workflow.manifest.library import Library, MissingObjectError

PACKING_PREFIX = ".fresh-"
"""Prefix of the folder in which an artifact is packed, beside its destination."""
NO_KEY = "artifact {} failed to load: The specified key does not exist."
BAD_KEY = 'Resource name contains bad components such as ".." or ".".'
IS_FOLDER = "Object name already exists as a directory."
BAD_VALUE_ERRORS = (OSError, ValueError, ArithmeticError, TypeError)
"""Exceptions that unusable values of a manifest raise: names, modes and levels that do not exist."""


class ArtifactError(Exception):
    """The artifact cannot be saved or loaded; in Argo's words."""


def artifact_key(entry: Mapping[str, Any], prefix: str) -> str:
    """The key of an output artifact. `prefix` is WORKFLOW/POD, unless the repository has a key format of its own."""
    if key := (entry.get("s3") or {}).get("key"):
        return str(key)
    archive = entry.get("archive") or {}
    if archive.get("none") is not None:
        return f"{prefix}/{os.path.basename(str(entry['path']).rstrip('/'))}"
    return f"{prefix}/{entry['name']}{'.zip' if archive.get('zip') is not None else '.tgz'}"


def artifact_path(folder: Path, key: str) -> Path:
    """The path of a key below the repository's folder. Raises ArtifactError in the words of Argo's store."""
    if {".", ".."} & set(key.split("/")):
        raise ArtifactError(BAD_KEY)
    try:
        return resolve_inside(folder, key.lstrip("/"))
    except BadPathError as error:
        raise ArtifactError(str(error)) from None


def save(place: Path, entry: Mapping[str, Any], repository: Path, key: str, below_volume: bool) -> None:
    """Pack the file or folder at `place` and keep it under the key. Raises ArtifactError."""
    try:
        to = artifact_path(repository, key)
    except ArtifactError as error:
        raise ArtifactError(f"failed to put file: {error}") from None
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=to.parent, prefix=PACKING_PREFIX))
        try:
            _pack(place, entry, fresh / "packed", below_volume)
            _publish(fresh / "packed", to)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except BAD_VALUE_ERRORS as error:
        raise ArtifactError(f"failed to put file: {error_text(error)}") from None


def error_text(error: Exception) -> str:
    """The error's text without paths of this machine."""
    return " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__


def _pack(place: Path, entry: Mapping[str, Any], packed_path: Path, below_volume: bool) -> None:
    archive = entry.get("archive") or {}
    if archive.get("none") is not None:
        archives.copy_plain(place, packed_path)
    elif archive.get("zip") is not None:
        if place.is_file() and not below_volume:
            # Argo's wait container has already moved the file that it wants to pack here.
            raise ArtifactError(f"stat /tmp/argo/outputs/artifacts/{entry['name']}: no such file or directory")
        archives.pack_zip(place, packed_path, f"mainctrfs{entry['path']}" if below_volume else "")
    else:
        level = (archive.get("tar") or {}).get("compressionLevel")
        name = os.path.basename(str(entry["path"]).rstrip("/"))
        archives.pack_tar(place, name, packed_path, None if level is None else int(level))


def _publish(packed_path: Path, to: Path) -> None:
    """Move the packed file or folder to its key. A folder is merged into an existing one; a file never replaces one."""
    if not to.is_dir():
        packed_path.replace(to)
        return
    if not packed_path.is_dir():
        raise ArtifactError(f"failed to put file: {IS_FOLDER}")
    for folder, _, names in os.walk(packed_path):
        for file in (Path(folder, name) for name in names):
            target = resolve_inside(to, str(file.relative_to(packed_path)))
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)


def load(
    entry: Mapping[str, Any], repository: Path, into: Path, library: Library, limits: UnpackLimits = DEFAULT_LIMITS,
    ending: web.Ending | None = None,
) -> None:  # fmt: skip
    """Put an input artifact at `into`; `ending` may end what is fetched by http or git. Raises ArtifactError."""
    try:
        _load(entry, repository, into, library, limits, ending)
    except BAD_VALUE_ERRORS as error:
        raise ArtifactError(f"artifact {entry['name']} failed to load: {error_text(error)}") from None


def _load(
    entry: Mapping[str, Any],
    repository: Path,
    into: Path,
    library: Library,
    limits: UnpackLimits,
    ending: web.Ending | None,
) -> None:
    if into.exists():
        shutil.rmtree(into) if into.is_dir() else into.unlink()
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent, prefix=".load-") as folder:
        download = Path(folder, "got")
        if not _fetch(entry, repository, download, library, ending):
            if not entry.get("optional"):
                raise ArtifactError(NO_KEY.format(entry["name"]))
            into.mkdir()
            return
        try:
            _unpack(entry, download, limits).rename(into)
        except ArchiveError as error:
            raise ArtifactError(str(error)) from None
        _set_mode(entry, into)


def _fetch(entry: Mapping[str, Any], repository: Path, to: Path, library: Library, ending: web.Ending | None) -> bool:
    """Fetch the artifact as it is kept. False: it does not exist."""
    if entry.get("raw") is not None:
        to.write_text(str(entry["raw"].get("data") or ""))
        to.chmod(0o666)
        return True
    if entry.get("http") or entry.get("git"):
        try:
            if entry.get("http"):
                remote.download(entry["http"], library, to, ending)
            else:
                git.clone(entry["git"], library, to, ending)
        except (remote.RemoteError, MissingObjectError) as error:
            if isinstance(error, remote.AbsentError) and entry.get("optional"):
                return False
            raise ArtifactError(f"artifact {entry['name']} failed to load: {error}") from None
        return True
    key = str((entry.get("s3") or {}).get("key") or "")
    try:
        copy_path = artifact_path(repository, key) if key else None
    except ArtifactError as error:
        raise ArtifactError(f"artifact {entry['name']} failed to load: failed to get file: {error}") from None
    if copy_path is None or not copy_path.exists():
        return False
    archives.copy_plain(copy_path, to)
    _chmod(to, 0o600, files_only=True)
    return True


def _unpack(entry: Mapping[str, Any], download: Path, limits: UnpackLimits) -> Path:
    """Unpack what was fetched, as the entry's archive strategy says. Returns the file or folder to use."""
    archive, out = entry.get("archive") or {}, download.with_name("out")
    if download.is_dir() or archive.get("none") is not None:
        return download
    if archive.get("zip") is not None:
        return archives.unzip(download, out, limits)
    if archive.get("tar") is not None or archives.is_tarball(download):
        return archives.untar(download, out, limits)
    return download


def _set_mode(entry: Mapping[str, Any], place: Path) -> None:
    mode = entry.get("mode")
    if mode is None:
        return
    if entry.get("recurseMode"):
        _chmod(place, int(mode))
    else:
        place.chmod(int(mode))


def _chmod(place: Path, mode: int, files_only: bool = False) -> None:
    """Set the mode of a whole tree, inner entries first, as a folder may become unreadable. Links are not followed."""
    for folder, names, files in os.walk(place, topdown=False):
        for path in (Path(folder, name) for name in [*([] if files_only else names), *files]):
            if not path.is_symlink():
                path.chmod(mode)
    if not (files_only and place.is_dir()):
        place.chmod(mode)
