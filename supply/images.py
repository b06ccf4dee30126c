"""The images as files: `python -m supply.images build/images [TARGET...]` (make images), as root, on Debian.

Each target of templates/Containerfile becomes an OCI archive, with its bill of materials beside it, and SHA256SUMS of
all. The base is made of Debian's packages, not fetched from a registry.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from supply import containerfile, sbom
from supply.image_builder import BASE, CERTIFICATES, ROOM, ROOM_WITHOUT_TORCH, Builder, missing
from supply.image_packages import IMAGES, ROOT
from supply.oci import About, OciError, write_archive
from supply.release import VersionError, check_version, write_sums

REVISION = "REVISION"
"""The file that names the commit whose images these are."""


class NoImagesError(RuntimeError):
    """Images cannot be made. One line: why, or which target is unknown."""


def image_name(target: str, version: str) -> str:
    """NAME:TAG of that target's image: steps use `everstep:VERSION`."""
    return f"everstep:{version}" if target == "everstep" else f"everstep-{target}:{version}"


def archive_name(target: str, version: str) -> str:
    """The name of that image's file."""
    return f"{image_name(target, version).replace(':', '-')}.oci.tar"


def revision() -> tuple[str, int]:
    """(The newest commit, its Unix time)."""
    words = ["git", "log", "-1", "--format=%H %ct"]
    commit, _, moment = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.partition(
        " "
    )
    return commit, int(moment)


def build(folder: Path, targets: Sequence[str]) -> list[Path]:
    """Make the archives of these targets in an empty folder; returns its files. Raises NoImagesError."""
    if unknown := [target for target in targets if target not in IMAGES]:
        raise NoImagesError(f"{', '.join(unknown)}: no such target; there are {', '.join(IMAGES)}")
    version, (commit, created_at) = check_version(), revision()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        has_torch = any("train" in IMAGES[target] for target in targets)
        if why := missing(Path(work), ROOM if has_torch else ROOM_WITHOUT_TORCH):
            raise NoImagesError(why)
        text = (ROOT / "templates/Containerfile").read_text()
        builder = Builder(Path(work), Path(work, "pip"), ROOT, containerfile.stages(text, {"BASE": BASE}))
        for target in targets:
            builder.build(target)
            settings = containerfile.settings(builder.stages, target)
            labels = {"version": version, "revision": commit, "licenses": "Apache-2.0", "title": f"everstep {target}"}
            about = About(
                image_name(target, version), created_at, settings.user, settings.folder, settings.entrypoint,
                settings.environment, {f"org.opencontainers.image.{name}": value for name, value in labels.items()},
            )  # fmt: skip
            layers = [Path(layer) for layer in reversed(builder.layers(target))]
            write_archive(folder / archive_name(target, version), layers, about, {CERTIFICATES.strip("/")})
            (folder / f"{target}.cdx.json").write_text(json.dumps(sbom.bill(target), indent=1) + "\n")
    write_sums(folder)
    (folder / REVISION).write_text(commit)
    return sorted(folder.iterdir())


if __name__ == "__main__":
    try:
        for _path in build(Path(sys.argv[1]).absolute(), sys.argv[2:] or list(IMAGES)):
            print(f"{_path}  {_path.stat().st_size / 1e6:.2f} MB")
    except (NoImagesError, VersionError, containerfile.ContainerfileError, OciError) as _error:
        sys.exit(f"images: {_error}")
