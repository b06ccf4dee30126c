"""`everstep workflow`: what a user sees of a run, a refusal, a stop."""

import contextlib
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from everstep.cli.main import main
from everstep.cli.run_views import log_lines
from everstep.runtime.system.rotate import rotate
from everstep.runtime.workflow import ManifestError
from everstep.runtime.workflow.engine.nodes import fnv32a
from everstep.runtime.workflow.run.run_folder import launcher_pid, lock
from tests.harness import PATIENCE_S, wait_until

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
RUN_IN_THIS_FOLDER = [sys.executable, "-m", "everstep", "workflow", "run", "--work-dir", "."]


def everstep(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`everstep workflow ...`, without the start of an interpreter."""
    out, error_text = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(error_text):
        code = main(["workflow", *arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), error_text.getvalue())


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


def test_a_log_that_begins_anew_is_followed_line_by_line(tmp_path: Path) -> None:
    assert everstep("run", str(manifest(tmp_path)), "--name", "h", cwd=tmp_path).returncode == 0
    folder, log = tmp_path / "runs/h", tmp_path / "runs/h/logs/h.log"
    with lock(folder):
        lines = log_lines(folder, "", follow=True)
        assert next(lines) == "h: hello"
        assert rotate(log, 1)
        for line in ("2", "3"):
            with log.open("a") as file:
                file.write(f"{line}\n")
            assert next(lines) == f"h: {line}"


def test_who_ends_the_following_of_a_log_sees_no_traceback(tmp_path: Path) -> None:
    assert everstep("run", str(manifest(tmp_path)), "--name", "h", cwd=tmp_path).returncode == 0
    command = [sys.executable, "-m", "everstep", "workflow", "logs", "h", "-f"]
    pipe = subprocess.PIPE
    with lock(tmp_path / "runs/h"), subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"h: hello\n"
        following.send_signal(signal.SIGINT)
        assert following.communicate(timeout=PATIENCE_S) == (b"", b"")
    assert following.returncode == 128 + signal.SIGINT


def test_a_failed_step_gives_exit_code_1_and_its_log(tmp_path: Path) -> None:
    ran = everstep("run", str(manifest(tmp_path, "exit 7")), "--name", "h", cwd=tmp_path)
    assert ran.returncode == 1
    assert "hello" in ran.stderr
    assert "main: Error (exit code 7)" in ran.stderr


def test_lint_names_what_cannot_be_run_here(tmp_path: Path) -> None:
    path = manifest(tmp_path)
    path.write_text(path.read_text().replace("entrypoint: main", "entrypoint: main\n  shutdown: Stop"))
    result = everstep("lint", str(path), cwd=tmp_path)
    assert result.returncode == 2
    assert "hello.yaml:7: cannot run here: here: spec.shutdown: not supported" in result.stderr
    assert everstep("run", str(path), cwd=tmp_path).returncode == 2
    assert not (tmp_path / "runs").exists()


def test_stop_ends_the_step_and_resume_takes_it_up(tmp_path: Path) -> None:
    path = manifest(tmp_path, "test -e go || sleep 600")
    command = [*RUN_IN_THIS_FOLDER, str(path), "--name", "h"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as launcher:
        wait_until((tmp_path / "runs/h/logs/h.log").exists, "the step's log")
        wait_until((tmp_path / "runs/h/logs/h.log").read_text, "the step's first line")
        assert everstep("stop", "h", cwd=tmp_path).returncode == 0
        assert launcher.wait(timeout=PATIENCE_S) == 128 + signal.SIGINT
    assert "Failed" in everstep("get", "h", cwd=tmp_path).stdout
    (tmp_path / "go").touch()
    assert everstep("resume", "h", cwd=tmp_path).returncode == 0


def test_what_a_launcher_that_ends_did_not_hear_is_refused_and_taken_back(tmp_path: Path) -> None:
    assert everstep("run", str(manifest(tmp_path)), "--name", "h", cwd=tmp_path).returncode == 0
    asks = tmp_path / "runs/h/asks"
    with contextlib.ExitStack() as launcher, ThreadPoolExecutor(1) as pool:
        launcher.enter_context(lock(asks.parent))
        stopping = pool.submit(lambda: (wait_until(lambda: list(asks.glob("*.json")), "the ask"), launcher.close()))
        result = everstep("stop", "h", cwd=tmp_path)
        stopping.result()
    assert result.returncode == 2
    assert result.stderr == f"everstep workflow stop: h: process {os.getpid()} has already ended\n"
    assert not list(asks.iterdir())


def test_who_only_looks_which_process_runs_a_run_keeps_none_from_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "lock").open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr("everstep.runtime.workflow.run.run_folder.file_lock.time.sleep", lambda _: looking.close())
        with lock(tmp_path):
            assert launcher_pid(tmp_path) == str(os.getpid())


def test_a_run_that_a_process_runs_is_refused_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everstep.runtime.workflow.run.run_folder.LOCK_WAIT_S", 0.0)
    with lock(tmp_path), pytest.raises(ManifestError, match=f"process {os.getpid()} already runs it"), lock(tmp_path):
        pass


@pytest.mark.parametrize("verb", ["stop", "terminate"])
def test_a_run_whose_launcher_was_killed_is_ended_with_its_pods(verb: str, tmp_path: Path) -> None:
    path = manifest(tmp_path, "echo $$$$ > pid; exec sleep 600")
    command = [*RUN_IN_THIS_FOLDER, str(path), "--name", "h"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as launcher:
        wait_until((tmp_path / "pid").exists, "the step")
        pid = int(wait_until((tmp_path / "pid").read_text, "its pid"))
        wait_until(lambda: b"PodStarted" in (tmp_path / "runs/h/events.jsonl").read_bytes(), "that it is known")
        launcher.kill()
    assert psutil.pid_exists(pid)
    assert everstep(verb, "h", cwd=tmp_path).returncode == 0
    wait_until(lambda: not psutil.pid_exists(pid), "the step's end")
    assert f"Stopped with strategy '{verb.capitalize()}'" in everstep("get", "h", cwd=tmp_path).stdout
    again = everstep(verb, "h", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (2, f"everstep workflow {verb}: h: has already ended: Failed\n")


@pytest.mark.parametrize(
    ("verb", "point", "phase"),
    [("stop", "after_manifest", "Pending"), ("terminate", "before_status", "Pending"),
     ("resume", "after_manifest", "Pending"), ("stop", "after_start,node=h", "Running")],
)  # fmt: skip
def test_a_run_whose_launcher_was_killed_at_its_beginning_is_seen(
    verb: str, point: str, phase: str, tmp_path: Path
) -> None:
    path = manifest(tmp_path, "test -e begun && exit 9; touch begun")
    command = [*RUN_IN_THIS_FOLDER, str(path), "--name", "h"]
    faults = {"EVERSTEP_FAULT_DIR": str(tmp_path), "EVERSTEP_FAULT": f"executor.{point}=kill"}
    killed = subprocess.run(command, cwd=tmp_path, env=os.environ | faults, stderr=subprocess.DEVNULL, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert f"Status:              {phase}" in everstep("get", "h", cwd=tmp_path).stdout
    assert f"h      {phase}" in everstep("list", cwd=tmp_path).stdout
    assert everstep("logs", "h", "-f", cwd=tmp_path).returncode == 0
    request = everstep(verb, "h", cwd=tmp_path)
    assert request.returncode == 0, request.stderr
    expected_status = (
        "Status:              Succeeded" if verb == "resume" else f"Stopped with strategy '{verb.capitalize()}'"
    )
    assert expected_status in everstep("get", "h", cwd=tmp_path).stdout
    assert phase == "Running" or (tmp_path / "begun").exists() == (verb == "resume")


def test_an_unknown_run_and_an_unreadable_file_are_one_line(tmp_path: Path) -> None:
    for result in (everstep("get", "nobody", cwd=tmp_path), everstep("run", "nothing.yaml", cwd=tmp_path)):
        assert result.returncode == 2
        assert result.stderr.strip().count("\n") == 0


OBJECTS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: colours}
data: {sky: blue}
---
apiVersion: argoproj.io/v1alpha1
kind: WorkflowTemplate
metadata: {name: library}
spec:
  templates:
  - name: say
    inputs: {parameters: [{name: text}]}
    outputs: {parameters: [{name: said, valueFrom: {path: /tmp/said}}]}
    container:
      image: i
      command: [sh, -c, "echo {{inputs.parameters.text}} $SKY | tee /tmp/said"]
      env: [{name: SKY, valueFrom: {configMapKeyRef: {name: colours, key: sky}}}]
"""
CALLS = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: calls}
spec:
  entrypoint: main
  arguments: {parameters: [{name: text, value: hello}]}
  templates:
  - name: main
    steps:
    - - name: a
        templateRef: {name: library, template: say}
        arguments: {parameters: [{name: text, value: "{{workflow.parameters.text}}"}]}
"""


def test_a_run_finds_templates_and_config_maps_in_other_files_and_takes_parameters(tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "all.yaml").write_text(OBJECTS)
    (tmp_path / "calls.yaml").write_text(CALLS)
    ran = everstep("run", "calls.yaml", "--with", "library", "-p", "text=good", "-o", "json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    nodes = json.loads(ran.stdout)["status"]["nodes"].values()
    assert [node["outputs"]["parameters"][0]["value"] for node in nodes if node["type"] == "Pod"] == ["good blue"]
    alone = everstep("run", "calls.yaml", cwd=tmp_path)
    assert alone.returncode == 2
    assert "calls.yaml:12: spec.templates[0].steps[0][0].templateRef: there is no WorkflowTemplate" in alone.stderr


OTHER = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: w}
spec:
  entrypoint: main
  arguments: {parameters: [{name: a}, {name: b, value: own}]}
  templates:
  - {name: main, container: {image: i, command: ["false"]}}
  - name: other
    container: {image: i, command: [sh, -c, "pwd; echo {{workflow.parameters.a}} {{workflow.parameters.b}}"]}
"""


def test_a_run_takes_a_file_of_parameters_another_entrypoint_and_a_folder_to_work_in(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(OTHER)
    (tmp_path / "values.json").write_text('{"a": 5, "b": {"c": [1]}}')
    (tmp_path / "place").mkdir()
    flags = ["--parameter-file", "values.json", "--entrypoint", "other", "--work-dir", "place", "-o", "name"]
    ran = everstep("run", "w.yaml", *flags, "--name", "named", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "named\n"), ran.stderr
    assert everstep("logs", "named", cwd=tmp_path).stdout == f"named: {tmp_path}/place\nnamed: 5 {{c:[1]}}\n"


WAITS = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: waits}
spec:
  entrypoint: main
  templates:
  - name: main
    steps:
    - - {name: ask, template: ask}
    - - {name: see, template: see, arguments: {parameters: [{name: x, value: "{{steps.ask.outputs.parameters.p}}"}]}}
  - name: ask
    suspend: {}
    outputs: {parameters: [{name: p, valueFrom: {supplied: {}}}]}
  - name: see
    inputs: {parameters: [{name: x}]}
    container: {image: i, command: [echo, "{{inputs.parameters.x}}"]}
"""


def test_a_suspended_step_is_given_its_output_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "waits.yaml").write_text(WAITS)
    command = [sys.executable, "-m", "everstep", "workflow", "run", "waits.yaml"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as launcher:
        wait_until(lambda: "ask" in everstep("get", "waits", cwd=tmp_path).stdout, "the suspended step")
        assert everstep("set", "waits", "--output-parameter", "p=given", cwd=tmp_path).returncode == 0
        assert everstep("resume", "waits", cwd=tmp_path).returncode == 0
        assert launcher.wait(timeout=PATIENCE_S) == 0
    assert everstep("logs", "waits", "see", cwd=tmp_path).stdout == f"waits-see-{fnv32a('waits[1].see')}: given\n"
    assert "Succeeded" in everstep("list", cwd=tmp_path).stdout


def test_programs_of_images_are_found_in_a_folder_and_by_the_name_of_the_image(tmp_path: Path) -> None:
    path = tmp_path / "hello.yaml"
    path.write_text(MANIFEST.replace('command: [sh, -c], args: ["echo hello; COMMAND"]', "args: [moo]"))
    refused_run = everstep("run", str(path), cwd=tmp_path)
    assert refused_run.returncode == 2
    assert "or set what its image runs: --image i=COMMAND" in refused_run.stderr
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "cowsay"
    program.write_text('#!/bin/sh\necho "cow says $*"\n')
    program.chmod(0o755)
    ran = everstep("run", str(path), "--name", "h", "--path", "bin", "--image", "i=cowsay loudly", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert everstep("logs", "h", cwd=tmp_path).stdout == "h: cow says loudly moo\n"


def test_a_run_that_ended_is_waited_for_watched_submitted_again_and_deleted(tmp_path: Path) -> None:
    path = manifest(tmp_path, "true")
    assert everstep("run", str(path), "--name", "h", cwd=tmp_path).returncode == 0
    waited = everstep("wait", "h", cwd=tmp_path)
    assert (waited.returncode, waited.stdout[:15]) == (0, "h Succeeded at ")
    watched = everstep("watch", "@latest", cwd=tmp_path)
    assert (watched.returncode, "Status:              Succeeded" in watched.stdout) == (0, True)
    assert everstep("resubmit", "h", cwd=tmp_path).returncode == 0
    assert len(list((tmp_path / "runs").glob("*/manifest.json"))) == 2
    assert everstep("delete", "h", cwd=tmp_path).stdout == "Workflow 'h' deleted\n"
    assert everstep("delete", "--older", "1h", cwd=tmp_path).stdout == ""
    assert everstep("delete", "--completed", cwd=tmp_path).returncode == 0
    assert list((tmp_path / "runs").glob("*/manifest.json")) == []


def test_a_run_that_nobody_runs_is_neither_waited_for_nor_deleted(tmp_path: Path) -> None:
    path = manifest(tmp_path, "true")
    assert everstep("run", str(path), "--name", "h", cwd=tmp_path).returncode == 0
    status_path = tmp_path / "runs/h/workflow.json"
    workflow = json.loads(status_path.read_text())
    del workflow["status"]["finishedAt"]
    status_path.write_text(json.dumps(workflow))
    assert "no process runs it" in everstep("wait", "h", cwd=tmp_path).stderr
    refused_run = everstep("delete", "h", cwd=tmp_path)
    assert (refused_run.returncode, refused_run.stderr.count("\n")) == (2, 1)
    assert status_path.exists()
    assert "no such run" in everstep("delete", "../runs/h", cwd=tmp_path).stderr
