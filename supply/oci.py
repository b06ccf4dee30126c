"""Writes an OCI image archive, which `podman load`, `ctr images import` and `skopeo copy oci-archive:` read.

Source: Open Container Initiative, "Image Format Specification" 1.1: image layout, manifest, configuration and layers.
The same files give the same archive: names are sorted, and no file is newer than the image.
"""

import gzip
import hashlib
import io
import json
import os
import platform
import stat
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_OPAQUE, _UNSUPPORTED = (
    "trusted.overlay.opaque",
    ("trusted.overlay.redirect", "trusted.overlay.metacopy", "security.capability"),
)
_WHITEOUT, _OPAQUE_NAME = ".wh.", ".wh..wh..opq"
_MEDIA = "application/vnd.oci.image"
_LEVEL = 6
"""Of gzip: 9 takes several times as long to save 1 %."""


class OciError(ValueError):
    """A layer has a file that an archive cannot carry. One line."""


@dataclass(frozen=True)
class About:
    """What an image says of itself."""

    name: str
    """NAME:TAG."""
    created: int
    """Unix time."""
    user: str
    folder: str
    entrypoint: Sequence[str]
    environment: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Blob:
    media: str
    digest: str
    size: int

    def descriptor(self) -> dict[str, Any]:
        return {"mediaType": f"{_MEDIA}.{self.media}", "digest": f"sha256:{self.digest}", "size": self.size}


def write_archive(path: Path, layers: Sequence[Path], about: About, leave_out: Collection[str] = ()) -> None:
    """Write the image of these overlay layers, the lowest first, without the files `leave_out`. Raises OciError."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        blobs = Path(folder, "blobs/sha256")
        blobs.mkdir(parents=True)
        layer_blobs = [_pack_layer(layer, blobs, about.created, leave_out) for layer in layers]
        config = _write_json(blobs, "config.v1+json", _config(about, [diff for _, diff in layer_blobs]))
        manifest = _write_json(
            blobs, "manifest.v1+json",
            {
                "schemaVersion": 2, "mediaType": f"{_MEDIA}.manifest.v1+json", "config": config.descriptor(),
                "layers": [blob.descriptor() for blob, _ in layer_blobs],
            },
        )  # fmt: skip
        names = {
            "org.opencontainers.image.ref.name": about.name,
            "io.containerd.image.name": f"docker.io/library/{about.name}",
        }
        index = {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.index.v1+json",
            "manifests": [{**manifest.descriptor(), "annotations": names}],
        }
        Path(folder, "index.json").write_text(json.dumps(index))
        Path(folder, "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        with tarfile.open(path, "w") as archive:
            for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
                info = archive.gettarinfo(file, str(file.relative_to(folder)))
                info.uid = info.gid = 0
                info.uname = info.gname = ""
                info.mtime, info.mode = about.created, 0o644
                with file.open("rb") as content:
                    archive.addfile(info, content)


def _config(about: About, diffs: Sequence[str]) -> dict[str, Any]:
    created_at = datetime.fromtimestamp(about.created, UTC).isoformat()
    return {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "created": created_at,
        "config": {
            "User": about.user,
            "Env": [f"{name}={value}" for name, value in about.environment.items()],
            "Entrypoint": list(about.entrypoint),
            "WorkingDir": about.folder,
            "Labels": dict(about.labels),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}" for diff in diffs]},
        "history": [{"created": created_at, "created_by": about.name} for _ in diffs],
    }


def _write_json(blobs: Path, media: str, document: Mapping[str, Any]) -> _Blob:
    content = json.dumps(document, sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return _Blob(media, digest, len(content))


class _Digesting(io.RawIOBase):
    """Passes bytes on, and digests them."""

    def __init__(self, to: IO[bytes] | gzip.GzipFile) -> None:
        self._to, self.digest = to, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self._to.write(data)
        return len(data)


def _pack_layer(layer: Path, blobs: Path, created_at: int, leave_out: Collection[str]) -> tuple[_Blob, str]:
    """(The compressed layer, the digest of the layer itself)."""
    packing = blobs / "packing"
    with packing.open("wb") as file:
        outer = _Digesting(file)
        with gzip.GzipFile("", "wb", _LEVEL, mtime=0, fileobj=outer) as compressed:
            inner = _Digesting(compressed)
            with tarfile.open(fileobj=inner, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                for path in _paths(layer):
                    if str(path.relative_to(layer)) not in leave_out:
                        _add(archive, layer, path, created_at)
    packing.rename(blobs / outer.digest.hexdigest())
    blob = _Blob("layer.v1.tar+gzip", outer.digest.hexdigest(), (blobs / outer.digest.hexdigest()).stat().st_size)
    return blob, inner.digest.hexdigest()


def _paths(folder: Path) -> Iterator[Path]:
    """Everything below the folder, a folder before its content."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _paths(Path(entry.path))


def _add(archive: tarfile.TarFile, layer: Path, path: Path, created_at: int) -> None:
    name, about = str(path.relative_to(layer)), path.lstat()
    if stat.S_ISSOCK(about.st_mode):
        return
    if stat.S_ISCHR(about.st_mode) and about.st_rdev == 0:  # Overlay's mark for a removed file.
        archive.addfile(_empty(str(Path(name).with_name(_WHITEOUT + path.name)), created_at))
        return
    for attribute in _UNSUPPORTED:
        if _attribute(path, attribute) is not None:
            raise OciError(f"{path}: an archive does not carry its attribute {attribute}")
    info = archive.gettarinfo(path, name)
    info.uname = info.gname = ""
    info.mtime = min(int(info.mtime), created_at)
    if info.isreg():
        with path.open("rb") as content:
            archive.addfile(info, content)
    else:
        archive.addfile(info)
    if info.isdir() and _attribute(path, _OPAQUE) == b"y":
        archive.addfile(_empty(f"{name}/{_OPAQUE_NAME}", created_at))


def _empty(name: str, created_at: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mtime = created_at
    return info


def _attribute(path: Path, name: str) -> bytes | None:
    with suppress(OSError):
        return os.getxattr(path, name, follow_symlinks=False)
    return None
