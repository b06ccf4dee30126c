"""What pods print and leave: it is read to its limit, and what is no file fails its node."""

from pathlib import Path

import pytest

from everstep.runtime.workflow.local_pods.pod import RESULT_BYTES, Pod
from everstep.runtime.workflow.local_pods.sandbox import NoSandboxError, Sandbox, check_available
from tests.workflow.running import log, run, sh, workflow


@pytest.mark.parametrize("output", ["a-folder-of-megabytes", "a-pipe", "a-link-to-itself"])
def test_an_output_that_is_no_small_file_fails_its_node(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    makes = {
        "a-folder-of-megabytes": "head -c 9000000 /dev/zero > /tmp/o",
        "a-pipe": "mkfifo /tmp/o",
        "a-link-to-itself": "ln -s /dev/zero /tmp/o",
    }
    outputs = {"parameters": [{"name": "o", "valueFrom": {"path": "/tmp/o"}}]}
    status = run(tmp_path, workflow([{"name": "main", "container": sh(makes[output]), "outputs": outputs}]))
    assert status["phase"] == "Error"
    assert status["message"].startswith("wait: Error (exit code 64): /tmp/o is ")


@pytest.mark.parametrize("path", ["/tmp/" + "a" * 300, "a" * 300, "b/" * 3000])
def test_an_output_whose_path_is_too_long_is_missing(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = {"parameters": [{"name": "o", "valueFrom": {"path": path}}]}
    status = run(tmp_path, workflow([{"name": "main", "container": sh("true"), "outputs": outputs}]))
    assert status["phase"] == "Error"
    assert status["message"].endswith("no such file or directory")


def test_what_a_pod_prints_is_read_from_its_end(tmp_path: Path) -> None:
    pod = Pod(tmp_path, tmp_path / "log")
    with pod.stdout.open("wb") as file:
        file.truncate(1 << 40)  # A terabyte, most of it a hole.
        file.seek(0, 2)
        file.write(b"end\n")
    assert pod.result()[-3:] == "end"
    assert len(pod.result()) == RESULT_BYTES - 1


@pytest.mark.parametrize("kind", ["one container", "several", "in a sandbox"])
def test_of_all_that_a_pod_prints_the_end_is_kept(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB here; a gigabyte takes the same memory and the same place."""
    monkeypatch.chdir(tmp_path)
    if kind == "in a sandbox":
        _skip_without_sandbox()
    prints = {"name": "prints", "container": sh("head -c 67108864 /dev/zero | tr '\\0' a; echo the end")}
    if kind == "several":
        prints["sidecars"] = [{"name": "beside", **sh("exec sleep 600")}]
    reads = {
        "name": "reads", "inputs": {"parameters": [{"name": "x"}]},
        "script": {"image": "i", "command": ["sh"], "source": "printf %s '{{=sprig.trunc(-8, inputs.parameters.x)}}'"},
    }  # fmt: skip
    arguments = {"parameters": [{"name": "x", "value": "{{steps.prints.outputs.result}}"}]}
    steps = [
        [{"name": "prints", "template": "prints"}],
        [{"name": "reads", "template": "reads", "arguments": arguments}],
    ]
    shut_in = Sandbox() if kind == "in a sandbox" else None
    status = run(tmp_path, workflow([{"name": "main", "steps": steps}, prints, reads]), sandbox=shut_in)
    assert status["phase"] == "Succeeded"
    assert log(tmp_path, "[1].reads") == "athe end"
    capture_files = [
        path for name in ("exit.stdout", "told/stdout") for path in (tmp_path / "runs").glob(f"w/pods/*/{name}")
    ]
    assert [path.stat().st_size for path in capture_files] == [RESULT_BYTES]


def _skip_without_sandbox() -> None:
    try:
        check_available()
    except NoSandboxError:
        pytest.skip("this kernel makes no sandbox")
