"""Each tutorial, read by a shell: its files are written and its commands run, in an empty folder, as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import PATIENCE_S, ROOT

TUTORIALS = ROOT / "docs/tutorials"
FILE = re.compile(r"[Ss]ave (?:it|this|this one) as `([\w.]+)`")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder: the repository's pipelines, and `python` and `everstep` in the PATH."""
    (tmp_path / "bin").mkdir()
    for name, words in (("python", ""), ("everstep", "-m everstep")):
        command = tmp_path / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        command.chmod(0o755)
    (tmp_path / "pipelines").symlink_to(ROOT / "pipelines")
    return tmp_path


def script_of(page: Path) -> str:
    """A shell script of all that the page tells its reader to do."""
    script, name = ["set -e"], ""
    for text, kind, block in re.findall(r"(.*?)^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        name = (FILE.findall(text) or [name])[-1]
        if kind == "python":
            script.append(f"cat > {name} <<'END_OF_FILE'\n{block}END_OF_FILE")
        elif kind == "sh":
            script.append(block)
    return "\n".join(script)


def follow(page: str, folder: Path) -> str:
    """Do what the page says; returns what was printed. An exit code other than 0 fails the test."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("ARGO_", "EVERSTEP_", "KUBE"))
    }
    environment |= {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "COLUMNS": "120"}
    done = subprocess.run(
        ["bash", "-c", script_of(TUTORIALS / f"{page}.md")], cwd=folder, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False, timeout=3 * PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def test_from_laptop_to_argo(folder: Path) -> None:
    told = follow("laptop-to-argo", folder)
    assert "hello you" in told
    assert told.count("0 errors, 0 warnings") == 2
    assert "s3://ml/everstep" in (folder / "cluster.yaml").read_text()


@pytest.mark.long
def test_your_own_script_resumes_where_it_was_killed(folder: Path) -> None:
    told = follow("own-script", folder)
    assert [path.name for path in (folder / "faults").iterdir()] == ["checkpoint.after_commit"]
    assert "starts after iteration 20" in told


@pytest.mark.long
def test_your_own_text_trains_a_model_that_is_trained_further(folder: Path) -> None:
    told = follow("own-text", folder)
    assert told.count("report: runs/") == 3
    assert told.count("perplexity: ") == 3
