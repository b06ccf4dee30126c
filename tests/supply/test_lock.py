"""constraints.txt: what may be installed, by its hashes, here, by CI and in the images."""

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from supply.image_packages import IMAGES, image_packages
from supply.lock import LockedPackage, disagreements, parse_lock
from tests.harness import ROOT

ANYWHERE = re.compile(r"://|@\s*(file|git)|--(extra-)?index-url|--find-links|--trusted-host|-i\s")
LOCKS = ("constraints.txt", ".ci/constraints.txt")
HASH = "0" * 64


def project() -> dict[str, Any]:
    """What pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_one_version_and_hashes_and_no_address(name: str) -> None:
    text = (ROOT / name).read_text()
    packages = parse_lock(text)
    assert len({package.name for package in packages}) == len(packages) > 1
    assert not ANYWHERE.search(text)


def test_the_lock_is_what_pyproject_asks_for() -> None:
    """To mend: make lock."""
    assert disagreements(project(), parse_lock((ROOT / "constraints.txt").read_text())) == []


def test_a_lock_that_is_behind_is_told_line_by_line() -> None:
    requirements = {
        "name": "x",
        "dependencies": ["a>=2", "b"],
        "optional-dependencies": {"more": ["c[d]==1.*"], "all": ["x[more]"]},
    }
    complaints = disagreements(requirements, [LockedPackage("a", "1.9", (HASH,)), LockedPackage("c", "1.4", (HASH,))])
    assert complaints == ["pyproject.toml asks for a>=2, constraints.txt has 1.9", "b is not in constraints.txt"]


@pytest.mark.parametrize("image", IMAGES)
def test_all_that_an_image_gets_is_locked_at_the_version_that_is_tested(image: str) -> None:
    versions = {package.name: package.version for package in parse_lock((ROOT / "constraints.txt").read_text())}
    locked_versions = {name: package.version for name, package in image_packages(image).items()}
    assert locked_versions.items() <= versions.items()


def test_for_linux_the_libraries_of_cuda_and_triton_are_locked() -> None:
    names = {package.name for package in parse_lock((ROOT / "constraints.txt").read_text())}
    assert names >= {"triton", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "nvidia-cusparselt-cu13"}


@pytest.mark.parametrize(
    "line",
    [
        "a==1.0",
        f"a>=1.0 --hash=sha256:{HASH}",
        f"a==1.0,==1.1 --hash=sha256:{HASH}",
        f"a @ https://example.org/a.whl --hash=sha256:{HASH}",
        "a==1.0 --hash=md5:00",
        f"a==1.0 --hash=sha256:{HASH} --hash=sha256:00",
    ],
)
def test_what_would_let_another_file_in_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="a: give one version"):
        parse_lock(f"# made by make lock\n{line}\n")


def test_all_that_make_and_ci_install_is_held_to_the_hashes() -> None:
    lines = re.sub(r"\\\n", "", (ROOT / "Makefile").read_text() + (ROOT / ".ci/run").read_text()).splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert len(installs) == 5
    for line in installs:
        ours = line.endswith("--no-deps --build-constraint constraints.txt -e .")
        assert ours or "--require-hashes" in line or "-c .ci/constraints.txt" in line, line


@pytest.mark.parametrize("whole", [True, False])
def test_the_locked_pip_takes_a_file_only_with_its_hash(tmp_path: Path, whole: bool) -> None:
    wheel = tmp_path / "everstep_probe-1.0-py3-none-any.whl"
    place = "everstep_probe-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as wheel_file:
        wheel_file.writestr(f"{place}/METADATA", "Metadata-Version: 2.1\nName: everstep-probe\nVersion: 1.0\n")
        wheel_file.writestr(
            f"{place}/WHEEL", "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel_file.writestr(f"{place}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest() if whole else HASH
    (tmp_path / "constraints.txt").write_text(f"everstep-probe==1.0 --hash=sha256:{digest}\n")
    completed = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", tmp_path, "--target", tmp_path / "there",
         "-c", tmp_path / "constraints.txt", "everstep-probe>=1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ("Successfully installed" in completed.stdout) == whole, completed.stdout + completed.stderr
    assert ("DO NOT MATCH THE HASHES" in completed.stderr) != whole
    assert (tmp_path / "there" / place).exists() == whole
