"""The launcher is killed at each of its own writes; the same command takes the run up and no pod runs twice."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from everstep.runtime.workflow.local_pods.pod import Folders, Pod
from everstep.runtime.workflow.local_pods.runner import ProcessRunner
from everstep.runtime.workflow.manifest.environment import ContainerCommand
from tests.harness import ROUNDS, wait_until

MANIFEST = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: w}
spec:
  entrypoint: main
  onExit: bye
  templates:
  - name: main
    dag:
      tasks:
      - {name: a, template: pod, arguments: {parameters: [{name: who, value: a}]}}
      - {name: b, template: pod, depends: a, arguments: {parameters: [{name: who, value: b}]}}
      - {name: c, template: pod, depends: a, arguments: {parameters: [{name: who, value: c}]}}
      - {name: d, template: pod, depends: "b && c", arguments: {parameters: [{name: who, value: d}]}}
  - name: pod
    inputs: {parameters: [{name: who}]}
    retryStrategy: {limit: 3, retryPolicy: Always}
    container:
      image: i
      command: [sh, -c]
      args: ["echo {{inputs.parameters.who}} begins >> ran; sleep 0.2; echo {{inputs.parameters.who}} ends >> ran"]
  - name: bye
    container: {image: i, command: [sh, -c, "echo bye begins >> ran; echo bye ends >> ran"]}
"""
POINTS = [
    "executor.before_manifest",
    "executor.after_manifest",
    "executor.before_event,event=RunCreated",
    "executor.after_event,event=RunCreated",
    "executor.after_start,node=w.a(0)",
    "executor.before_event,event=PodStarted",
    "executor.after_event,event=PodStarted",
    "executor.after_start,node=w.c(0)",
    "executor.after_exit,node=w.b(0)",
    "executor.before_event,event=PodEnded",
    "executor.after_event,event=PodEnded",
    "executor.after_exit,node=w.d(0)",
    "executor.after_start,node=w.onExit",
    "executor.after_exit,node=w.onExit",
    "executor.before_status",
    "executor.after_status",
]


def run(folder: Path, fault: str = "") -> int:
    """`everstep workflow run`, with a fault or without; its exit code."""
    faults = folder / "faults"
    faults.mkdir(exist_ok=True)
    environment = {**os.environ, "EVERSTEP_FAULT_DIR": str(faults)}
    if fault:
        environment["EVERSTEP_FAULT"] = f"{fault}=kill"
    command = [sys.executable, "-m", "everstep", "workflow", "run", "w.yaml", "--name", "w", "--work-dir", "."]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, check=False, timeout=120
    ).returncode


@pytest.mark.parametrize("_time", range(ROUNDS))
@pytest.mark.parametrize("point", POINTS)
def test_a_launcher_killed_at_a_write_is_followed_by_one_that_runs_no_pod_twice(
    point: str, _time: int, tmp_path: Path
) -> None:
    (tmp_path / "w.yaml").write_text(MANIFEST)
    assert run(tmp_path, point) == -9
    assert (tmp_path / "faults" / point.partition(",")[0]).exists()
    assert run(tmp_path) == 0
    ran = (tmp_path / "ran").read_text().splitlines()
    assert sorted(ran) == sorted(f"{who} {what}" for who in ("a", "b", "c", "d", "bye") for what in ("begins", "ends"))
    assert ran.index("a ends") < min(ran.index("b begins"), ran.index("c begins"))
    assert max(ran.index("b ends"), ran.index("c ends")) < ran.index("d begins")


@pytest.mark.parametrize("_time", range(ROUNDS))
def test_of_launchers_that_start_one_pod_at_once_only_one_runs_its_command(_time: int, tmp_path: Path) -> None:
    template = {"container": {"command": ["sh", "-c", "echo here >> ran; sleep 0.5"]}}
    pod = Pod(tmp_path / "run" / "pods" / "p", tmp_path / "log")

    def start(_: int) -> tuple[int, int]:
        answers = ProcessRunner().start(
            [
                pod.start_request(
                    template,
                    ContainerCommand(template["container"]["command"], dict(os.environ)),
                    Folders(tmp_path, tmp_path),
                )
            ]
        )
        return pod.started_process(answers[str(pod.claim_file)])

    with ThreadPoolExecutor(8) as launchers:
        pids = set(launchers.map(start, range(8)))
    assert len(pids) == 1
    wait_until(pod.exit_file.exists, "the end of the pod")
    assert (tmp_path / "ran").read_text() == "here\n"
