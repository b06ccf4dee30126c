"""A container of several that cannot be started fails as on Argo, with one line in the log; nobody waits for it."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.workflow.local_pods.pod import has_namespaces
from tests.workflow.running import log, run, workflow

TOO_LONG = ["echo", "x" * 200_000]
"""The kernel takes 128 KiB as one argument."""
MOUNTED = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
VOLUMES = [{"name": "v", "emptyDir": {}}]


def container(name: str, *command: str, **more: Any) -> dict[str, Any]:
    """A container of that command."""
    return {"name": name, "image": "i", "command": list(command), **more}


def pod(folder: Path, **template: Any) -> Mapping[str, Any]:
    """The status of a run of one pod."""
    return run(folder, workflow([{"name": "main", **template}], volumes=VOLUMES))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in this machine's /tmp that nothing else names."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


def program(folder: Path, text: str) -> str:
    """A program of that text in the folder."""
    path = folder / "program"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("kind", ["arguments", "no program", "no program, with mounts"])
def test_what_depends_on_a_container_that_cannot_be_started_does_not_wait(
    kind: str, tmp_path: Path, folder: Path
) -> None:
    command = TOO_LONG if kind == "arguments" else [program(folder, "echo without a first line\n")]
    bad = container("bad", *command, **(MOUNTED if "mounts" in kind else {}))
    status = pod(tmp_path, containerSet={"containers": [bad, container("main", "true", dependencies=["bad"])]})
    nodes = {node["name"]: node for node in status["nodes"].values()}
    assert nodes["w"]["message"] == "bad: Error (exit code 64)"
    assert nodes["w.bad"]["phase"] == "Failed"
    assert nodes["w.main"]["message"].endswith('dependency "bad" exited with non-zero code: 64')
    why = "Argument list too long" if kind == "arguments" else "Exec format error"
    assert log(tmp_path, "w").splitlines()[-1].endswith(why)


def test_sidecars_end_with_a_main_container_that_cannot_be_started(tmp_path: Path) -> None:
    main = {"image": "i", "command": TOO_LONG}
    status = pod(tmp_path, container=main, sidecars=[container("beside", "sleep", "600")])
    assert (status["phase"], status["message"]) == ("Failed", "main: Error (exit code 64)")
    assert "Argument list too long" in log(tmp_path, "w")


@pytest.mark.parametrize("kind", ["initContainers", "sidecars"])
def test_a_container_beside_main_that_cannot_be_started_fails_the_pod(kind: str, tmp_path: Path) -> None:
    main = {"image": "i", "command": ["true"]}
    status = pod(tmp_path, container=main, **{kind: [container("bad", *TOO_LONG)]})
    assert (status["phase"], status["message"]) == ("Failed", "bad: Error (exit code 64)")


@pytest.mark.skipif(not has_namespaces(), reason="this kernel has no namespaces: pods share /tmp")
def test_a_program_in_tmp_is_there_for_each_of_several_containers(tmp_path: Path, folder: Path) -> None:
    said = container("main", program(folder, "#!/bin/sh\necho found\n"))
    assert pod(tmp_path, containerSet={"containers": [said]})["phase"] == "Succeeded"
    assert log(tmp_path, "w") == "found\n"
