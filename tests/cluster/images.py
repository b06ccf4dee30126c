"""Container images without a registry: written here as OCI archives, imported by each node's containerd.

After the OCI image specification ("Image Layout", "Image Manifest", "Image Configuration"). None holds a system: `HOST`
is an empty root into which a pod mounts this machine's programs and Python environment, read-only (see `patch`).
"""

import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.layout import HOME
from tests.harness import ROOT

PAUSE, HOST, EXECUTOR = (f"docker.io/everstep-tests/{name}:1" for name in ("pause", "host", "argoexec"))
FOLDER = HOME / "images"
MERGED = ("bin", "sbin", "lib", "lib64")
"""Links to the folders of /usr with these names, as this machine has them."""
CPU = "100m"
"""What the pods ask for: two nodes share this machine's cores."""
OCI = "application/vnd.oci.image"


@dataclass(frozen=True)
class Image:
    """What is in it, and how it is run."""

    name: str
    files: Mapping[str, Path] = field(default_factory=dict)
    folders: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    working_folder: str = "/"


def of_the_cluster() -> list[Image]:
    """What every node has."""
    search = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
    variables = {"PATH": search, "PYTHONPATH": str(ROOT), "HOME": "/tmp", "USER": "somebody", "LANG": "C.UTF-8"}
    busybox = Path(shutil.which("busybox") or "busybox")
    return [
        Image(PAUSE, {"bin/busybox": busybox}, command=["/bin/busybox", "sleep", "infinity"]),
        Image(HOST, folders=["usr", "etc", "tmp", "var/tmp", "run"], environment=variables, working_folder="/tmp"),
    ]


def executor(program: Path) -> Image:
    """Argo's, which stands beside every step."""
    return Image(EXECUTOR, {"bin/argoexec": program}, ["tmp"], environment={"PATH": "/bin"})


def patch() -> dict[str, Any]:
    """What a pod of `HOST` needs besides, over its own spec: this machine's programs, and no whole CPU."""
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in _places().items()]
    mounts_read_only = [{"name": name, "mountPath": path, "readOnly": True} for name, path in _places().items()]
    main = {"name": "main", "volumeMounts": mounts_read_only, "resources": {"requests": {"cpu": CPU}}}
    return {"volumes": volumes, "containers": [main]}


def _places() -> dict[str, str]:
    """By name of the volume: folders of this machine that make Python, Java and Everstep run in a pod."""
    base = Path(os.path.realpath(sys.executable)).parents[1]
    paths = dict.fromkeys(["/usr", "/etc", str(base), sys.prefix, str(ROOT)])
    outer = [path for path in paths if not any(path.startswith(f"{parent}/") for parent in paths)]
    return {f"host-{number}": path for number, path in enumerate(outer)}


def archive(image: Image) -> Path:
    """The image as a file that containerd imports; written once for each content."""
    image_facts = {**image.__dict__, "files": {to: _stamp(path) for to, path in image.files.items()}}
    key = hashlib.sha256(json.dumps(image_facts, sort_keys=True).encode()).hexdigest()[:16]
    path = FOLDER / f"{image.name.rpartition('/')[2].replace(':', '-')}-{key}.tar"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".fresh")
        _write(fresh, image)
        fresh.rename(path)
    return path


def _stamp(path: Path) -> list[Any]:
    status = path.stat()
    return [str(path), status.st_size, status.st_mtime_ns]


def _write(path: Path, image: Image) -> None:
    layer = _layer(image)
    config = {
        "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        "config": {
            "Cmd": list(image.command), "Env": [f"{key}={value}" for key, value in image.environment.items()],
            "WorkingDir": image.working_folder,
        },
    }  # fmt: skip
    config_bytes = json.dumps(config).encode()
    manifest = json.dumps({
        "schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json",
        "config": _descriptor(config_bytes, f"{OCI}.config.v1+json"),
        "layers": [_descriptor(layer, f"{OCI}.layer.v1.tar")],
    }).encode()  # fmt: skip
    entry = _descriptor(manifest, f"{OCI}.manifest.v1+json")
    entry["annotations"] = {"io.containerd.image.name": image.name}
    index = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    with tarfile.open(path, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(tar, "index.json", index)
        for blob in (layer, config_bytes, manifest):
            _add(tar, f"blobs/{_digest(blob).replace(':', '/')}", blob)


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in image.folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            tar.addfile(entry)
        for name, source in image.files.items():
            _add(tar, name, source.read_bytes(), 0o755)
        for name in MERGED if "usr" in image.folders else ():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _descriptor(content: bytes, media: str) -> dict[str, Any]:
    return {"mediaType": media, "digest": _digest(content), "size": len(content)}
