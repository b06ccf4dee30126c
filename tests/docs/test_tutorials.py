"""Each tutorial, read by a shell: its files are written and its commands run, in an empty folder, as they stand."""

from pathlib import Path

import pytest

from tests.docs.shell import follow, prepare
from tests.harness import ROOT

TUTORIALS = ROOT / "docs/tutorials"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepare(tmp_path)


def test_from_laptop_to_argo(folder: Path) -> None:
    output = follow(TUTORIALS / "laptop-to-argo.md", folder)
    assert "hello you" in output
    assert output.count("0 errors, 0 warnings") == 2
    assert "s3://ml/everstep" in (folder / "cluster.yaml").read_text()


@pytest.mark.long
def test_your_own_script_resumes_where_it_was_killed(folder: Path) -> None:
    output = follow(TUTORIALS / "own-script.md", folder)
    assert [path.name for path in (folder / "faults").iterdir()] == ["checkpoint.after_commit"]
    assert "starts after iteration 20" in output


@pytest.mark.long
def test_your_own_text_trains_a_model_that_is_trained_further(folder: Path) -> None:
    listing = follow(TUTORIALS / "own-text.md", folder)
    assert listing.count("report: runs/") == 3
    assert listing.count("perplexity: ") == 3
