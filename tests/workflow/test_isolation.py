"""Pods side by side: what each writes is its own, and nothing of them is left when the run is stopped."""

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from everstep.cli.main import main
from everstep.runtime.workflow import RunOptions, execute
from everstep.runtime.workflow.local_pods import isolation, pod
from everstep.runtime.workflow.local_pods.pod import has_namespaces
from everstep.runtime.workflow.run import executor
from everstep.runtime.workflow.run.control_requests import ControlRequest, submit_request
from tests.harness import PATIENCE_S, wait_until
from tests.workflow.running import log, run, sh, workflow

WRITES = "echo {{inputs.parameters.x}} > /tmp/mine; touch {{inputs.parameters.x}}; " \
         "until test -e a -a -e b; do sleep 0.05; done; cat /tmp/mine"  # fmt: skip
PRIVATE = pytest.mark.skipif(
    not has_namespaces(), reason="this kernel has no namespaces: pods share this machine's folders"
)
LEAVES = "setsid sh -c 'echo $$$$ > {{inputs.parameters.x}}.pid; exec sleep 600' & wait"


def loop(command: str, items: list[str], **container: Any) -> dict[str, Any]:
    """A task that runs this in a shell, once for each item."""
    arguments = {"parameters": [{"name": "x", "value": "{{item}}"}]}
    task = {"name": "t", "template": "pod", "withItems": items, "arguments": arguments}
    pod = {"name": "pod", "inputs": {"parameters": [{"name": "x"}]}, "container": sh(command, **container)}
    return workflow([{"name": "main", "dag": {"tasks": [task]}}, pod])


def test_two_pods_that_write_the_same_absolute_path_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(tmp_path, loop(WRITES, ["a", "b"]))
    logs = {path.name: path.read_text() for path in (tmp_path / "runs/w/logs").iterdir()}
    assert logs == {"t(0:a).log": "a\n", "t(1:b).log": "b\n"}


RELATIVE = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: w}
spec:
  entrypoint: main
  templates:
  - name: main
    dag: {tasks: [{name: write, template: write}, {name: several, template: several}, {name: script, template: script}]}
  - name: write
    container: {image: i, command: [sh, -c, "pwd; echo kept > result.txt; cp result.txt other.txt"]}
    outputs:
      parameters: [{name: o, valueFrom: {path: /result.txt}}]
      artifacts: [{name: a, path: other.txt, archive: {none: {}}}]
  - name: script
    script: {image: i, command: [sh], source: "mkdir -p sub && echo deep > sub/result.txt"}
    outputs: {parameters: [{name: o, valueFrom: {path: sub/result.txt}}]}
  - name: several
    containerSet: {containers: [{name: main, image: i, command: [sh, -c, "echo three > result.txt"]}]}
    outputs: {parameters: [{name: o, valueFrom: {path: /result.txt}}]}
"""


def run_relative(folder: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the nodes of RELATIVE, run by the command in that folder."""
    (folder / "w.yaml").write_text(RELATIVE)
    code = main(["workflow", "run", "w.yaml", *flags])
    status = json.loads((folder / "runs/w/workflow.json").read_text())["status"]
    return code, {node["displayName"]: node.get("outputs") or {} for node in status["nodes"].values()}


@PRIVATE
@pytest.mark.parametrize("flags", [(), ("--sandbox",)])
def test_a_relative_path_begins_at_the_pods_own_root(
    flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, nodes = run_relative(tmp_path, *flags)
    values = {name: nodes[name]["parameters"][0]["value"] for name in ("write", "several", "script")}
    assert (code, values) == (0, {"write": "kept", "several": "three", "script": "deep"})
    assert [artifact["name"] for artifact in nodes["write"]["artifacts"]][:1] == ["a"]
    assert log(tmp_path, "write") == "/\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "w.yaml"], "nothing is left where it was called"


def test_without_namespaces_a_pod_begins_where_it_was_called_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in (pod, executor):
        monkeypatch.setattr(module, "has_namespaces", lambda: False)
    run_relative(tmp_path)
    assert log(tmp_path, "write") == f"{tmp_path}\n"
    assert "pods share this machine's folders and start in this one" in capsys.readouterr().err


def test_a_step_of_everstep_begins_where_the_launcher_does_and_others_where_a_person_says(tmp_path: Path) -> None:
    own, other, folders = ("python", "-m", "everstep.steps.train"), ("python", "train.py"), pod.Folders(Path("/a"))
    assert folders.begin({}, own) == "/a"
    assert folders._replace(chosen=tmp_path).begin({}, own) == "/a"
    assert folders._replace(chosen=tmp_path).begin({}, other) == str(tmp_path)
    assert folders._replace(chosen=tmp_path).begin({"workingDir": "below"}, other) == str(tmp_path / "below")
    assert folders.begin({"workingDir": "/b"}, other) == "/b"


@pytest.mark.parametrize("how", ["stop", "terminate"])
def test_a_stop_ends_also_what_a_pod_has_made_a_daemon(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def stop_run() -> int:
        going = asyncio.create_task(execute(loop(LEAVES, ["a"]), RunOptions("w", tmp_path / "runs", work_dir=tmp_path)))
        await asyncio.to_thread(wait_until, (tmp_path / "a.pid").exists, "the daemon")
        pid = int(await asyncio.to_thread(wait_until, (tmp_path / "a.pid").read_text, "its pid"))
        assert psutil.pid_exists(pid)
        submit_request(tmp_path / "runs/w", ControlRequest(how))
        async with asyncio.timeout(PATIENCE_S):
            await going
        return pid

    pid = asyncio.run(stop_run())
    wait_until(lambda: not psutil.pid_exists(pid), "the daemon's end")


APART = [
    {"name": "before", "command": ["sh", "-c", "echo before > /data/x; test ! -e /told"],
     "volumeMounts": [{"name": "two", "mountPath": "/data"}]},
    {"name": "beside", "command": ["sh", "-c", "cat /data/x > /data/y; test ! -e /work/f; sleep 600"],
     "volumeMounts": [{"name": "two", "mountPath": "/data"}]},
]  # fmt: skip
MAIN = """
echo main > /data/x
until test -s /other/y; do sleep 0.05; done
touch /other/z 2> /dev/null || echo read only; cat /other/y; pwd; touch f; ls /work
"""


@PRIVATE
def test_each_container_of_a_pod_has_the_mounts_that_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before, beside = ({**container, "image": "i"} for container in APART)
    mounts = [{"name": "one", "mountPath": "/data"}, {"name": "two", "mountPath": "/other", "readOnly": True},
              {"name": "work", "mountPath": "/work"}]  # fmt: skip
    main = {"image": "i", "command": ["sh", "-c", MAIN], "workingDir": "/work", "volumeMounts": mounts}
    pod = {
        "name": "pod", "initContainers": [before], "sidecars": [beside], "container": main,
        "volumes": [{"name": name, "emptyDir": {}} for name in ("one", "two", "work")],
        "outputs": {"parameters": [{"name": "x", "valueFrom": {"path": "/data/x"}}]},
    }  # fmt: skip
    status = run(tmp_path, workflow([pod]))
    assert status["phase"] == "Succeeded", log(tmp_path, "w")
    assert log(tmp_path, "w") == "read only\nbefore\n/work\nf\n"
    assert status["nodes"]["w"]["outputs"]["parameters"][0]["value"] == "main"


@PRIVATE
def test_a_folder_to_begin_in_that_the_machine_has_not_is_the_pod_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(tmp_path, loop("pwd; touch f", ["a"], workingDir="/nowhere-else/deep"))
    assert log(tmp_path, "t(0:a)") == "/nowhere-else/deep\n"
    assert not Path("/nowhere-else").exists()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of this machine's /tmp."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="everstep-test-") as folder_name:
        yield Path(folder_name)


@PRIVATE
def test_a_folder_of_tmp_that_a_pod_is_told_of_is_there_whole_and_no_other(folder: Path, tmp_path: Path) -> None:
    (folder / "script.sh").write_text(f"cat {folder}/beside; echo more > {folder}/made; ls /tmp")
    (folder / "beside").write_text("beside it\n")
    with tempfile.TemporaryDirectory(dir="/tmp") as other:
        status = run(tmp_path, workflow([{"name": "pod", "container": sh(f"sh {folder}/script.sh")}]))
        assert status["phase"] == "Succeeded", log(tmp_path, "w")
        log_lines = log(tmp_path, "w").splitlines()
        assert Path(other).name not in log_lines
    assert log_lines[0] == "beside it"
    assert folder.name in log_lines
    assert (folder / "made").read_text() == "more\n"


@PRIVATE
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_in_a_folder_of_tmp_that_is_another_users_a_pod_reads_and_does_not_write(folder: Path, tmp_path: Path) -> None:
    (folder / "script.sh").write_text(f"echo told; echo mine > {folder}/made")
    folder.chmod(0o777)
    os.chown(folder, 12345, 12345)
    status = run(tmp_path, workflow([{"name": "pod", "container": sh(f"sh {folder}/script.sh")}]))
    assert status["phase"] == "Failed"
    log_text = log(tmp_path, "w")
    assert log_text.startswith("told\n")
    assert "Read-only file system" in log_text
    assert not (folder / "made").exists()


MEANT = [
    "AT/a.py", "AT", "a b=AT/x", "'AT/x'", "file://AT/x", "cc -IAT/x", "-LAT", "/usr:AT/bin", "$(cat AT/x)", ">AT/x",
]  # fmt: skip
NOT_MEANT = ["/varAT", "$HOMEAT", "${HOME}AT", "..AT", "~AT", "AT-other/x", "http://hostAT/x", "out-xAT/x"]


@pytest.mark.parametrize("word", [*MEANT, *NOT_MEANT])
def test_a_folder_of_tmp_is_meant_where_it_is_named_and_not_where_a_path_has_such_a_part(
    word: str, folder: Path, tmp_path: Path
) -> None:
    plan = isolation.plan_root(tmp_path / "root", isolation.PodPaths([], {}, [word.replace("AT", str(folder))]), [])
    assert (str(folder) in plan.binds) is (word in MEANT)
