"""`--sandbox`: what a pod can see and do, told by the pod itself."""

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.cli.main import main
from everstep.runtime.workflow.local_pods import sandbox
from everstep.runtime.workflow.local_pods.sandbox import NoSandboxError
from tests.harness import wait_until
from tests.workflow.running import manifest_text


def _kernel_makes_none() -> bool:
    try:
        sandbox.check_available()
    except NoSandboxError:
        return True
    return False


pytestmark = pytest.mark.skipif(_kernel_makes_none(), reason="this kernel makes no sandbox")

WORKFLOW = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: w}
spec:
  entrypoint: main
  volumes: [{name: shared, emptyDir: {}}]
  templates:
  - name: main
    steps: [[{name: look, template: look}, {name: link, template: link, continueOn: {error: true}},
             {name: several, template: several}]]
  - name: look
    script:
      image: i
      command: [sh]
      source: |
        echo pid $$
        echo processes $(ls /proc | grep -c '^[0-9]')
        grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status | tr '\\t\\n' '  '; echo
        ls -A HOME 2> /dev/null | wc -l
        touch written-here; touch RUNS/../written-there 2> /dev/null
        { echo hello > RUNS/other/beside.json; } 2> /dev/null
        ls RUNS
        cat RUNS/w/beside.json; ls RUNS/w/pods | grep -v "$(ls RUNS/w/pods | head -1)"
        { echo x > RUNS/w/events.jsonl; } 2> /dev/null || echo the log is read only
        { echo y > RUNS/w/workflow.json; } 2> /dev/null || echo the status is read only
        { mount -o remount,rw,bind / || echo 1 > /proc/sys/kernel/printk; } 2> /dev/null || echo no privileges
        setsid sh -c 'exec sleep 600' &
        echo done > /tmp/out; echo shm > /dev/shm/mine
        exit 0
    outputs: {parameters: [{name: o, valueFrom: {path: /tmp/out}}]}
  - name: link
    container: {image: i, command: [sh, -c, "ln -s SECRET /tmp/stolen"]}
    outputs: {parameters: [{name: o, valueFrom: {path: /tmp/stolen}}]}
  - name: several
    initContainers: [{name: first, image: i, command: [sh, -c, "echo before > /v/a"],
                      volumeMounts: [{name: shared, mountPath: /v}]}]
    container: {image: i, command: [sh, -c, "cat /w/a; ls /w"], volumeMounts: [{name: shared, mountPath: /w}]}
"""


@pytest.fixture
def outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The nodes of a run in a sandbox, its logs, and the processes that it left."""
    work, home = tmp_path / "work", tmp_path / "home"
    (work / "runs/other").mkdir(parents=True)
    home.mkdir()
    (home / "secret").write_text("mine")
    (work / "runs/other/beside.json").write_text("a secret of another run")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    text = WORKFLOW.replace("HOME", str(home)).replace("RUNS", str(work / "runs")).replace("SECRET", f"{home}/secret")
    Path("w.yaml").write_text(text)
    code = main(["workflow", "run", "w.yaml", "--sandbox", "--no-network"])
    logs = {path.stem: path.read_text() for path in (work / "runs/w/logs").glob("*.log")}
    status = yaml.safe_load((work / "runs/w/workflow.json").read_text())["status"]
    return {"code": code, "logs": logs, "nodes": {node["displayName"]: node for node in status["nodes"].values()}}


def test_a_pod_sees_its_own_and_changes_nothing_else(outcome: dict[str, Any]) -> None:
    look = outcome["logs"]["[0].look"].splitlines()
    assert look[0] == "pid 2"
    assert look[1] in ("processes 4", "processes 5")
    assert look[2].split() == ["CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]
    assert look[3] == "0", "the home is empty"
    assert look[4:] == ["w", "the log is read only", "the status is read only", "no privileges"]
    assert not list(Path().glob("written-*"))
    assert outcome["nodes"]["look"]["outputs"]["parameters"][0]["value"] == "done"
    assert Path("runs/other/beside.json").read_text() == "a secret of another run"
    assert not Path("/dev/shm/mine").exists()
    wait_until(lambda: "sleep 600" not in _commands(), "the end of what the pod left behind")


def test_a_link_that_a_pod_left_as_its_output_is_not_followed(outcome: dict[str, Any]) -> None:
    assert outcome["nodes"]["link"]["phase"] == "Error"
    assert "mine" not in str(outcome["nodes"]["link"].get("outputs"))


def test_several_containers_have_their_own_mounts_in_it(outcome: dict[str, Any]) -> None:
    assert outcome["nodes"]["several"]["phase"] == "Succeeded", outcome["logs"]
    assert outcome["logs"]["[0].several"] == "before\na\n"
    assert outcome["code"] == 0


NETWORK = manifest_text("""
  - name: main
    container:
      image: i
      command: [python3, -c, "import socket; socket.create_connection(('127.0.0.1', PORT), 5).close()"]
""")


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--no-network"], 1)])
def test_a_pod_has_this_machines_network_or_none(
    flags: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        Path("w.yaml").write_text(NETWORK.replace("PORT", str(server.getsockname()[1])))
        assert main(["workflow", "run", "w.yaml", "--sandbox", *flags]) == code


def test_it_is_refused_by_name_where_the_kernel_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text(NETWORK)

    def refuse(*_: Any, **__: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess([], 1, "", "sandbox: unshare: Operation not permitted")

    monkeypatch.setattr(sandbox.subprocess, "run", refuse)
    assert main(["workflow", "run", "w.yaml", "--sandbox"]) == 2
    assert capsys.readouterr().err == (
        "everstep workflow run: --sandbox: this kernel cannot make one (sandbox: unshare: Operation not permitted); "
        "run it in a container or on a cluster\n"
    )
    assert not Path("runs/w/events.jsonl").exists()


def test_a_run_stays_in_its_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text(NETWORK.replace("PORT", "1"))
    assert main(["workflow", "run", "w.yaml", "--sandbox"]) == 1
    assert main(["workflow", "run", "w.yaml"]) == 2
    assert "has a run with other sandbox flags; give the same ones" in capsys.readouterr().err
    assert main(["workflow", "run", "w.yaml", "--no-network"]) == 2
    assert "--no-network: needs --sandbox, too" in capsys.readouterr().err


def _commands() -> str:
    """Of all processes of this machine that this user may see."""
    command_lines = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                command_lines.append(
                    Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
    return "\n".join(command_lines)
