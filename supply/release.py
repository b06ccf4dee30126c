"""What a release is made of: `python -m supply.release build/release` (make release).

The source archive, the wheel, the chart, a bill of materials for each image, the images that `make images` has made of
this commit, and SHA256SUMS of all of them; beside the folder, notes.md. Times in archives are those of the newest
commit, so that the same commit gives the same files.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

import yaml

from everstep.version import VERSION
from supply import sbom
from supply.image_packages import ROOT

CHART = ROOT / "templates/chart"
IMAGES_FOLDER = ROOT / "build/images"
SUMS = "SHA256SUMS"
NOTES = "notes.md"
"""The version's section of CHANGELOG.md, for the page of the release."""


class VersionError(ValueError):
    """Two places name different versions; says which."""


def check_version(version: str = "") -> str:
    """The version, which the package, its code, the chart and (if given) the tag agree on. Raises VersionError."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    versions = {"pyproject.toml": project, "everstep/version.py": VERSION, "the chart": str(about["appVersion"])}
    versions |= {"VERSION": version} if version else {}
    if len(set(versions.values())) > 1:
        raise VersionError("; ".join(f"{place} says {version}" for place, version in versions.items()))
    if f"\n## {project}\n" not in (ROOT / "CHANGELOG.md").read_text():
        raise VersionError(f"CHANGELOG.md has no section {project}")
    return project


def notes(version: str) -> str:
    """What CHANGELOG.md says of that version, without its heading."""
    return (ROOT / "CHANGELOG.md").read_text().split(f"\n## {version}\n")[1].partition("\n## ")[0].strip() + "\n"


def build(folder: Path, version: str = "") -> list[Path]:
    """Make every file of the release in an empty folder, and NOTES beside it; returns the folder's files.

    Raises VersionError.
    """
    project = check_version(version)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder.parent / NOTES).write_text(notes(project))
    moment = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    os.environ["SOURCE_DATE_EPOCH"] = moment.stdout.strip()
    build_python(folder.absolute())
    pack_chart(folder, int(moment.stdout))
    sbom.main(folder)
    for image in images_of(IMAGES_FOLDER):
        shutil.copy(image, folder)
    files = write_sums(folder)
    return [folder / SUMS, *files]


def images_of(folder: Path) -> list[Path]:
    """The archives that `make images` has made there of the newest commit; none if it made them of another."""
    made_of = folder / "REVISION"
    newest = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    is_same = made_of.exists() and made_of.read_text().strip() == newest.stdout.strip()
    return sorted(folder.glob("*.oci.tar")) if is_same else []


def write_sums(folder: Path) -> list[Path]:
    """Write SHA256SUMS of all files of the folder; returns these files."""
    files, sums = sorted(path for path in folder.iterdir() if path.name != SUMS), ""
    for path in files:
        with path.open("rb") as content:
            sums += f"{hashlib.file_digest(content, 'sha256').hexdigest()}  {path.name}\n"
    (folder / SUMS).write_text(sums)
    return files


def build_python(folder: Path) -> None:
    """The source archive, from a copy of what is committed, and the wheel, from the source archive."""
    with tempfile.TemporaryDirectory() as copy:
        content = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(copy, filter="tar")
        (source,) = _call_backend("build_sdist", Path(copy), folder)
        with tarfile.open(source) as archive:
            archive.extractall(copy, filter="data")
        _call_backend("build_wheel", Path(copy, source.name.removesuffix(".tar.gz")), folder)


def _call_backend(function: str, source: Path, folder: Path) -> list[Path]:
    """The new files in the folder after a call of the build backend, in a process of its own."""
    before = set(folder.iterdir())
    code = f"import sys; from setuptools import build_meta; build_meta.{function}(sys.argv[1])"
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, "-c", code, folder], cwd=source, env=quiet, stdout=subprocess.DEVNULL, check=True)
    return sorted(set(folder.iterdir()) - before)


def pack_chart(folder: Path, moment: int) -> Path:
    """The chart as `helm package` makes it: a folder of the chart's name, compressed."""
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    path = folder / f"{about['name']}-chart-{about['version']}.tgz"

    def normal(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime, info.uid, info.gid, info.uname, info.gname = moment, 0, 0, "", ""
        return info

    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=moment, fileobj=raw) as chart_file,
        tarfile.open(fileobj=chart_file, mode="w") as archive,
    ):
        for file in sorted(path for path in CHART.rglob("*") if path.is_file()):
            archive.add(file, f"{about['name']}/{file.relative_to(CHART)}", filter=normal)
    return path


if __name__ == "__main__":
    try:
        for _path in build(Path(sys.argv[1]), *sys.argv[2:]):
            print(f"{_path}  {_path.stat().st_size / 1e6:.2f} MB")
        if not images_of(IMAGES_FOLDER):
            print(
                "without images: run `make images` first (as root, on Debian), or build them by templates/Containerfile"
            )
    except VersionError as _error:
        sys.exit(f"release: {_error}; make them agree")
