"""`everstep workflow`: what a user sees of a run, a refusal, a stop."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.harness import wait_until

MANIFEST = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: hello-}
spec:
  entrypoint: main
  templates:
  - name: main
    container: {image: i, command: [sh, -c], args: ["echo hello; COMMAND"]}
"""


def everstep(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`everstep workflow ...` as a user calls it."""
    command = [sys.executable, "-m", "everstep", "workflow", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def manifest(folder: Path, command: str = "true") -> Path:
    """A file with one step."""
    path = folder / "hello.yaml"
    path.write_text(MANIFEST.replace("COMMAND", command))
    return path


def test_run_get_and_logs_tell_of_the_step(tmp_path: Path) -> None:
    ran = everstep("run", str(manifest(tmp_path)), "--name", "h", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "Succeeded" in everstep("get", "h", cwd=tmp_path).stdout
    assert everstep("logs", "h", cwd=tmp_path).stdout == "h: hello\n"


def test_a_failed_step_gives_its_exit_code_and_its_log(tmp_path: Path) -> None:
    ran = everstep("run", str(manifest(tmp_path, "exit 7")), "--name", "h", cwd=tmp_path)
    assert ran.returncode == 7
    assert "hello" in ran.stderr
    assert "main: Error (exit code 7)" in ran.stderr


def test_lint_names_what_cannot_be_run_here(tmp_path: Path) -> None:
    path = manifest(tmp_path)
    path.write_text(path.read_text().replace("entrypoint: main", "entrypoint: main\n  podSpecPatch: x"))
    told = everstep("lint", str(path), cwd=tmp_path)
    assert told.returncode == 2
    assert "hello.yaml:7: spec.podSpecPatch: not supported" in told.stderr
    assert everstep("run", str(path), cwd=tmp_path).returncode == 2
    assert not (tmp_path / "runs").exists()


def test_stop_ends_the_step_and_resume_takes_it_up(tmp_path: Path) -> None:
    path = manifest(tmp_path, "test -e go || sleep 600")
    command = [sys.executable, "-m", "everstep", "workflow", "run", str(path), "--name", "h"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as launcher:
        wait_until((tmp_path / "runs/h/logs/h.log").exists, "the step's log")
        wait_until((tmp_path / "runs/h/logs/h.log").read_text, "the step's first line")
        assert everstep("stop", "h", cwd=tmp_path).returncode == 0
        assert launcher.wait(timeout=60) == 128 + signal.SIGINT
    assert "Failed" in everstep("get", "h", cwd=tmp_path).stdout
    (tmp_path / "go").touch()
    assert everstep("resume", "h", cwd=tmp_path).returncode == 0


def test_an_unknown_run_and_an_unreadable_file_are_one_line(tmp_path: Path) -> None:
    for told in (everstep("get", "nobody", cwd=tmp_path), everstep("run", "nothing.yaml", cwd=tmp_path)):
        assert told.returncode == 2
        assert told.stderr.strip().count("\n") == 0
