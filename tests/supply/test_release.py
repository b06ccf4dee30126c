"""A release: its files, that the places which name its version agree, and the hosted files that call make."""

import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from supply.images import revision
from supply.release import CHART, VersionError, build, check_version, images_of, notes, pack_chart
from tests.harness import ROOT

HOSTED = sorted((ROOT / ".github").rglob("*.yml"))


def test_all_places_name_one_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", check_version())


def test_a_tag_of_another_version_is_refused() -> None:
    with pytest.raises(VersionError, match=r"VERSION says 9\.9\.9"):
        check_version("9.9.9")


def test_the_chart_is_packed_as_helm_does_and_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = pack_chart(tmp_path / "a", 1_700_000_000), pack_chart(tmp_path / "b", 1_700_000_000)
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        names = archive.getnames()
        about = archive.extractfile("everstep/Chart.yaml")
        assert about is not None
        assert about.read() == (CHART / "Chart.yaml").read_bytes()
    assert {"everstep/values.yaml", "everstep/templates/rbac.yaml", "everstep/files/steps.yaml"} <= set(names)


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    text = notes(check_version())
    assert text.strip()
    assert "## " not in text.replace("### ", "")
    assert text in (ROOT / "CHANGELOG.md").read_text() + "\n"


def test_a_release_takes_only_images_of_its_own_commit(tmp_path: Path) -> None:
    (tmp_path / "everstep-submit-1.2.3.oci.tar").touch()
    assert images_of(tmp_path) == []
    (tmp_path / "REVISION").write_text("0" * 40)
    assert images_of(tmp_path) == []
    (tmp_path / "REVISION").write_text(revision()[0])
    assert [path.name for path in images_of(tmp_path)] == ["everstep-submit-1.2.3.oci.tar"]


@pytest.mark.long
def test_a_release_has_its_files_and_their_sums(tmp_path: Path) -> None:
    sums, *files = build(tmp_path / "release")
    assert (tmp_path / "notes.md").read_text() == notes(check_version())
    sums_by_name = dict(line.split("  ")[::-1] for line in sums.read_text().splitlines())
    assert sums_by_name == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert len([path for path in files if not path.name.endswith(".oci.tar")]) == 7
    (wheel,) = (path for path in files if path.suffix == ".whl")
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    assert {"everstep/py.typed", "everstep/runtime/report/page.html", "everstep/steps/train/llama.py"} <= names
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"everstep"}


@pytest.mark.parametrize("path", HOSTED, ids=[path.name for path in HOSTED])
def test_a_hosted_file_is_yaml_and_its_targets_exist(path: Path) -> None:
    assert yaml.safe_load(path.read_text())
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"run: (?:sudo )?make ([a-z0-9-]+)", path.read_text())) <= targets


def test_the_code_of_the_hooks_before_a_commit_is_there() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    ruff = [hook["entry"] for hook in repository["hooks"] if "ruff" in hook["entry"]]
    for entry in ruff:
        words = [sys.executable, "-m", *entry.removeprefix(".venv/bin/").split(), "--help"]
        assert subprocess.run(words, capture_output=True, check=False).returncode == 0
