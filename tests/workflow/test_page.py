"""What the documentation says of `everstep workflow` is true when pasted."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import ROOT, wait_until

PAGE = (ROOT / "docs/how-to/argo-manifests.md").read_text()
SECTION = PAGE.partition("\n## ")[0]
YAML, PASTED, WHILE = re.findall(r"```(?:yaml)?\n(.*?)```", SECTION, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the manifest of the page, and the command in the PATH."""
    (tmp_path / "hello.yaml").write_text(YAML)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "everstep"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m everstep "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def lines(block: str) -> list[tuple[str, str]]:
    """(command, what the comment says) of each line."""
    return [
        (command.strip(), comment.strip())
        for command, _, comment in (line.partition("#") for line in block.splitlines())
    ]


def paste(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line in a shell."""
    return subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False)


def test_each_line_does_what_its_comment_shows(folder: Path) -> None:
    for command, comment in lines(PASTED):
        completed = paste(command, folder)
        assert completed.returncode == 0, (command, completed.stderr)
        assert comment in completed.stdout + completed.stderr, (command, completed.stdout, completed.stderr)


def test_a_run_is_stopped_and_taken_up_as_told(folder: Path) -> None:
    verbs = {command.split()[2]: command.replace("NAME", "w") for command, _ in lines(WHILE)}
    (folder / "hello.yaml").write_text(YAML.replace("command: [echo,", 'command: [sh, -c, "test -e go || sleep 600",'))

    def assert_shown(word: str) -> None:
        assert word in paste("everstep workflow get w", folder).stdout

    def wait_for_starts(times: int) -> None:
        log = folder / "runs/w/events.jsonl"
        wait_until(lambda: log.exists() and log.read_bytes().count(b"PodStarted") == times, "the step's start")
        wait_until((folder / "runs/w/workflow.json").exists, "what is shown of it")

    with subprocess.Popen(
        "exec everstep workflow run hello.yaml --name w --work-dir .", shell=True, cwd=folder
    ) as launcher:
        wait_for_starts(1)
        assert paste(verbs["stop"], folder).returncode == 0
        assert launcher.wait() == 128 + signal.SIGINT
    assert_shown("Failed")
    with subprocess.Popen(f"exec {verbs['retry']}", shell=True, cwd=folder) as launcher:
        wait_for_starts(2)
        assert paste(verbs["terminate"], folder).returncode == 0
        assert launcher.wait() == 128 + signal.SIGINT
    (folder / "go").touch()
    assert paste(verbs["resume"], folder).returncode == 0
    assert_shown("Succeeded")
