"""An error of this machine's files when a pod is started is an error of its node, in one line, and ends no launcher."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.workflow.local_pods.pod import has_namespaces
from tests.workflow.running import log, run, sh, workflow

PRIVATE = pytest.mark.skipif(not has_namespaces(), reason="this kernel has no namespaces: pods have no mounts")
MOUNTED = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
TREE = {"name": "tree", "path": "/tmp/tree"}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        if Path(folder).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm is no file system of its own here")
        yield Path(folder)


def passing(command: str, **spec: Any) -> dict[str, Any]:
    """A step makes a folder; this command finds it in a volume, beside a file. `spec`: more of the manifest."""
    arguments = {"artifacts": [{"name": "tree", "from": "{{steps.make.outputs.artifacts.tree}}"}]}
    steps = [[{"name": "make", "template": "make"}], [{"name": "use", "template": "use", "arguments": arguments}]]
    inputs = [{"name": "tree", "path": "/v/tree"}, {"name": "leaf", "path": "/v/leaf", "raw": {"data": "a leaf"}}]
    make = "mkdir /tmp/tree; echo a branch > /tmp/tree/branch; ln -s branch /tmp/tree/link"
    return workflow([
        {"name": "main", "steps": steps},
        {"name": "make", "container": sh(make), "outputs": {"artifacts": [TREE]}},
        {"name": "use", "retryStrategy": {"limit": 1}, "inputs": {"artifacts": inputs},
         "container": sh(command, **MOUNTED)},
    ], **spec)  # fmt: skip


def test_a_host_path_that_cannot_be_made_fails_its_step_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = str(tmp_path / "file/below")
    tasks = [{"name": name, "template": name} for name in ("a", "b")]
    source = workflow([
        {"name": "main", "dag": {"tasks": tasks}},
        {"name": "a", "container": sh("true", **MOUNTED)},
        {"name": "b", "container": sh("echo b >> ran")},
    ], volumes=[{"name": "v", "hostPath": {"path": place}}])  # fmt: skip
    for _ in range(2):
        status = run(tmp_path, source)
        nodes = {node["name"]: node for node in status["nodes"].values()}
        assert status["phase"] == "Failed"
        assert nodes["w.a"]["message"] == f"main: Error (exit code 64): {place}: Not a directory"
        assert nodes["w.b"]["phase"] == "Succeeded"
    assert (tmp_path / "ran").read_text() == "b\n"


@PRIVATE
def test_artifacts_come_into_a_volume_on_another_file_system(tmp_path: Path, elsewhere: Path) -> None:
    (elsewhere / "leaf").write_text("an old leaf")
    source = passing("cat /v/tree/link /v/leaf", volumes=[{"name": "v", "hostPath": {"path": str(elsewhere)}}])
    assert run(tmp_path, source)["phase"] == "Succeeded"
    assert log(tmp_path, "[1].use(0)") == "a branch\na leaf"
    assert sorted(path.name for path in elsewhere.iterdir()) == ["leaf", "tree"]


@PRIVATE
def test_a_folder_that_an_earlier_attempt_left_in_a_claim_fails_the_next_in_one_line(tmp_path: Path) -> None:
    claim = {"metadata": {"name": "v"}, "spec": {}}
    status = run(tmp_path, passing("exit 3", volumeClaimTemplates=[claim]))
    nodes = {node["name"]: node for node in status["nodes"].values()}
    assert nodes["w[1].use(0)"]["message"] == "main: Error (exit code 3)"
    message = nodes["w[1].use(1)"]["message"]
    assert message.startswith("main: Error (exit code 64): ")
    assert message.endswith("/tree: Directory not empty")
    assert "\n" not in message
