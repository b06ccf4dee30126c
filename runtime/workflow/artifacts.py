"""Artifacts between pods: archives under keys in a folder, as Argo keeps them in a bucket.

`save` packs what a pod wrote (tgz, zip or as it is), `load` puts it where the next pod looks for it. Keys are Argo's:
`WORKFLOW/POD/NAME.tgz`. Rules after Argo's documentation ("Configuring Your Artifact Repository", "Artifacts") and
recorded answers.
"""

import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.workflow import remote
from runtime.workflow.library import Library, NotThereError

FRESH = ".fresh-"
"""What the name of a folder begins with in which an artifact is packed, beside its place."""
GZIP = b"\x1f\x8b"
NO_KEY = "artifact {} failed to load: The specified key does not exist."


class ArtifactError(Exception):
    """It cannot be saved or loaded; in Argo's words."""


def key_of(entry: Mapping[str, Any], prefix: str) -> str:
    """Where an output artifact is kept; `prefix` is WORKFLOW/POD, unless the repository has a format of its own."""
    if key := (entry.get("s3") or {}).get("key"):
        return str(key)
    archive = entry.get("archive") or {}
    if archive.get("none") is not None:
        return f"{prefix}/{os.path.basename(str(entry['path']).rstrip('/'))}"
    return f"{prefix}/{entry['name']}{'.zip' if archive.get('zip') is not None else '.tgz'}"


def save(place: Path, entry: Mapping[str, Any], to: Path, below_volume: bool) -> None:
    """Keep what lies at `place` under the key's path `to`. Raises ArtifactError."""
    archive = entry.get("archive") or {}
    to.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=to.parent, prefix=FRESH))
    packed = fresh / "packed"
    try:
        if archive.get("none") is not None:
            _copy_plain(place, packed)
        elif archive.get("zip") is not None:
            if place.is_file() and not below_volume:
                # Argo's wait container has moved the file that it then wants to pack.
                raise ArtifactError(f"stat /tmp/argo/outputs/artifacts/{entry['name']}: no such file or directory")
            _zip(place, packed, f"mainctrfs{entry['path']}" if below_volume else "")
        else:
            level = (archive.get("tar") or {}).get("compressionLevel")
            with tarfile.open(packed, "w:gz", compresslevel=1 if level is None else max(0, int(level))) as tar:
                tar.add(place, os.path.basename(str(entry["path"]).rstrip("/")))
        if to.is_dir() and not to.is_symlink():
            shutil.rmtree(to)
        packed.replace(to)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _copy_plain(place: Path, to: Path) -> None:
    """As a bucket keeps it: files and nothing else."""
    if not place.is_dir():
        shutil.copyfile(place, to)
        return
    to.mkdir()
    for folder, _, names in os.walk(place):
        for name in names:
            file = Path(folder, name)
            if not file.is_symlink():
                there = to / file.relative_to(place)
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, there)


def _zip(place: Path, to: Path, named: str) -> None:
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as packed:
        if place.is_file():
            packed.write(place, named or place.name)
            return
        for folder, _, names in os.walk(place, followlinks=True):
            for name in names:
                file = Path(folder, name)
                packed.write(file, str(Path(place.name) / file.relative_to(place)))


def load(entry: Mapping[str, Any], repository: Path, into: Path, library: Library) -> None:
    """Put an input artifact at `into`. Raises ArtifactError."""
    if into.exists():
        shutil.rmtree(into) if into.is_dir() else into.unlink()
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent, prefix=".load-") as folder:
        got = Path(folder, "got")
        if not _fetch(entry, repository, got, library):
            if not entry.get("optional"):
                raise ArtifactError(NO_KEY.format(entry["name"]))
            into.mkdir()
            return
        _unpack(entry, got, into)
    _set_mode(entry, into)


def _fetch(entry: Mapping[str, Any], repository: Path, to: Path, library: Library) -> bool:
    """Get it as it is kept; False when there is nothing."""
    if entry.get("raw") is not None:
        to.write_text(str(entry["raw"].get("data") or ""))
        to.chmod(0o666)
        return True
    if entry.get("http") or entry.get("git"):
        try:
            if entry.get("http"):
                remote.download(entry["http"], library, to)
            else:
                remote.clone(entry["git"], library, to)
        except (remote.RemoteError, NotThereError) as error:
            if isinstance(error, remote.AbsentError) and entry.get("optional"):
                return False
            raise ArtifactError(f"artifact {entry['name']} failed to load: {error}") from None
        return True
    key = str((entry.get("s3") or {}).get("key") or "")
    kept = repository / key
    inside = os.path.realpath(kept).startswith(os.path.realpath(repository) + os.sep)
    if not key or not inside or not kept.exists():
        return False
    if kept.is_dir():
        _copy_plain(kept, to)
        for folder, _, names in os.walk(to):
            for name in names:
                Path(folder, name).chmod(0o600)
    else:
        shutil.copyfile(kept, to)
        to.chmod(0o600)
    return True


def _unpack(entry: Mapping[str, Any], got: Path, into: Path) -> None:
    archive = entry.get("archive") or {}
    if got.is_dir() or archive.get("none") is not None:
        got.rename(into)
    elif archive.get("zip") is not None:
        _unzip(got, into)
    elif archive.get("tar") is not None or _is_tarball(got):
        _untar(got, into)
    else:
        got.rename(into)


def _is_tarball(path: Path) -> bool:
    """A gzipped tar, told by its content."""
    with path.open("rb") as file:
        if file.read(2) != GZIP:
            return False
    try:
        with tarfile.open(path, "r:gz") as tar:
            tar.next()
    except (tarfile.TarError, OSError, EOFError):
        return False
    return True


def _untar(got: Path, into: Path) -> None:
    """One member takes the input's place, several become a folder."""
    out = got.with_name("out")
    out.mkdir()
    try:
        with tarfile.open(got, "r:*") as tar:
            tar.extractall(out, filter="tar")
    except (tarfile.TarError, EOFError, OSError):
        raise ArtifactError("unexpected EOF") from None
    _settle(out, into)


def _unzip(got: Path, into: Path) -> None:
    out = got.with_name("out")
    out.mkdir()
    try:
        with zipfile.ZipFile(got) as packed:
            packed.extractall(out)
    except zipfile.BadZipFile:
        raise ArtifactError("zip: not a valid zip file") from None
    for folder, _, names in os.walk(out):
        for name in names:
            Path(folder, name).chmod(0o666)
    _settle(out, into)


def _settle(out: Path, into: Path) -> None:
    members = list(out.iterdir())
    (members[0] if len(members) == 1 else out).rename(into)


def _set_mode(entry: Mapping[str, Any], place: Path) -> None:
    mode = entry.get("mode")
    if mode is None:
        return
    place.chmod(int(mode))
    if entry.get("recurseMode"):
        for folder, names, files in os.walk(place):
            for name in [*names, *files]:
                Path(folder, name).chmod(int(mode))
