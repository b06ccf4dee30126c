"""What manifests ask for on a laptop besides steps and scripts: git, http with a password, facts of the pod."""

import asyncio
import base64
import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.system.processes import start_time
from everstep.runtime.workflow import ManifestError, RunOptions, execute, parse
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.run.control_requests import ControlRequest, submit_request
from tests.harness import PATIENCE_S, wait_until
from tests.workflow.running import log, ran, sh, workflow

SECRET = {"kind": "Secret", "metadata": {"name": "me"}, "stringData": {"user": "ann", "password": "sesame"}}
BASIC = {"usernameSecret": {"name": "me", "key": "user"}, "passwordSecret": {"name": "me", "key": "password"}}


class Guarded(http.server.BaseHTTPRequestHandler):
    """Files that are put and got by who knows the password."""

    kept: dict[str, bytes]

    def _known(self) -> bool:
        is_authorized = self.headers.get("Authorization") == f"Basic {base64.b64encode(b'ann:sesame').decode()}"
        if not is_authorized:
            self.send_error(401)
        return is_authorized

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self._known():
            self.kept[self.path] = body
            self.send_response(201)
            self.end_headers()

    def do_GET(self) -> None:
        if self._known():
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.kept[self.path])

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def guarded_server() -> Iterator[str]:
    """The address of such a server."""
    handler = type("Handler", (Guarded,), {"kept": {}})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository: v1 is tagged, then main and a branch went on."""
    place = tmp_path / "repository"

    def git(*words: str) -> None:
        who = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        subprocess.run(["git", *words], cwd=place, env=os.environ | who | alone, check=True, capture_output=True)

    place.mkdir()
    git("init", "--initial-branch=main")
    for text, name in (("one", "v1"), ("two", ""), ("three", "side")):
        if name == "side":
            git("checkout", "-b", name)
        (place / "f").write_text(text)
        git("add", "f")
        git("commit", "-m", text)
        if name == "v1":
            git("tag", name)
    git("checkout", "main")
    return place


@pytest.mark.parametrize(
    ("more", "text"),
    [({}, "two"), ({"revision": "v1"}, "one"), ({"revision": "side", "depth": 1}, "three"),
     ({"singleBranch": True, "branch": "side"}, "three")],
)  # fmt: skip
def test_a_git_artifact_is_a_clone_at_its_revision(
    more: dict[str, Any], text: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"name": "source", "path": "/src", "git": {"repo": f"file://{repository}", **more}}
    main = {"name": "main", "inputs": {"artifacts": [source]}, "container": sh("cat /src/f; test -d /src/.git")}
    status = ran(tmp_path, monkeypatch, Library(), [main])
    assert status["phase"] == "Succeeded", status
    assert log(tmp_path, "w") == text


def test_a_git_artifact_that_cannot_be_had_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"name": "source", "path": "/src", "git": {"repo": f"{tmp_path}/nothing"}}
    status = ran(tmp_path, monkeypatch, Library(), [
        {"name": "main", "inputs": {"artifacts": [source]}, "container": sh("true")}
    ])  # fmt: skip
    assert status["phase"] == "Error"
    assert f'artifact source failed to load: failed to clone "{tmp_path}/nothing": fatal: ' in status["message"]


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has the pid of the ssh by which git asks a host that never answers."""
    ssh, pid = tmp_path / "ssh", tmp_path / "pid"
    ssh.write_text(f"#!/bin/sh\necho $$ > {pid}.part\nmv {pid}.part {pid}\nexec sleep 600\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    monkeypatch.setenv("GIT_SSH_VARIANT", "simple")
    return pid


@pytest.mark.parametrize("why", ["stop", "terminate", "deadline"])
def test_what_ends_a_run_ends_the_processes_of_a_clone(why: str, silent: Path, tmp_path: Path) -> None:
    source = {"name": "source", "path": "/src", "git": {"repo": "ssh://host/code.git"}}
    limit = {"activeDeadlineSeconds": 4} if why == "deadline" else {}
    main = {"name": "main", "inputs": {"artifacts": [source]}, "container": sh("true"), **limit}

    async def end_run() -> str:
        going = asyncio.create_task(execute(workflow([main]), RunOptions("w", tmp_path / "runs", work_dir=tmp_path)))
        await asyncio.to_thread(wait_until, silent.exists, "git's ssh")
        assert start_time(int(silent.read_text()))
        if why != "deadline":
            submit_request(tmp_path / "runs/w", ControlRequest(why))
        async with asyncio.timeout(PATIENCE_S):
            return (await going).phase.value

    assert asyncio.run(end_run()) == "Failed"
    assert start_time(int(silent.read_text())) is None
    assert not list((tmp_path / "runs").rglob(".load-*"))


def test_http_artifacts_are_put_and_got_with_a_password(
    guarded_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = {"url": f"{guarded_server}/file", "auth": {"basicAuth": BASIC}}
    artifact = {"name": "in", "from": "{{steps.make.outputs.artifacts.out}}"}
    templates = [
        {"name": "main", "steps": [[{"name": "make", "template": "make"}],
                                   [{"name": "use", "template": "use", "arguments": {"artifacts": [artifact]}}]]},
        {"name": "make", "container": sh("echo hello > /tmp/out"),
         "outputs": {"artifacts": [{"name": "out", "path": "/tmp/out", "http": at, "archive": {"none": {}}}]}},
        {"name": "use", "inputs": {"artifacts": [{"name": "in", "path": "/tmp/in"}]}, "container": sh("cat /tmp/in")},
    ]  # fmt: skip
    status = ran(tmp_path, monkeypatch, Library.from_objects([SECRET]), templates)
    assert status["phase"] == "Succeeded", status
    assert log(tmp_path, "[1].use") == "hello\n"
    with pytest.raises(ManifestError, match=r"basicAuth.usernameSecret: there is no Secret 'me'"):
        parse({"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow",
               "spec": {"entrypoint": "make", "templates": templates[1:2]}})  # fmt: skip


FACTS = """
echo $NAME $LIMIT; cat /info/labels /info/cpu; echo
mkdir -p /data/$NAME; test -e /mine/there && echo there; echo 2/5 > $ARGO_PROGRESS_FILE; exit ${EVERSTEP_POD:-0}
"""


def test_a_pod_is_told_of_itself_and_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_POD", "3")
    env = [{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
           {"name": "LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
           ]  # fmt: skip
    downward_items = [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
             {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}}]  # fmt: skip
    (tmp_path / "host" / "w").mkdir(parents=True)
    (tmp_path / "host" / "w" / "there").touch()
    main = {
        "name": "main", "metadata": {"labels": {"team": "blue"}},
        "volumes": [{"name": "info", "downwardAPI": {"items": downward_items}}, {"name": "data", "ephemeral": {}},
                    {"name": "host", "hostPath": {"path": str(tmp_path / "host")}}],
        "container": sh(FACTS, env=env, resources={"limits": {"memory": "64Mi", "cpu": "1500m"}}, volumeMounts=[
            {"name": "info", "mountPath": "/info"}, {"name": "data", "mountPath": "/data"},
            {"name": "host", "mountPath": "/mine", "subPathExpr": "$(NAME)"}]),
    }  # fmt: skip
    status = ran(tmp_path, monkeypatch, Library(), [main])
    assert status["phase"] == "Succeeded", log(tmp_path, "w")
    labels = 'team="blue"\nworkflows.argoproj.io/completed="false"\nworkflows.argoproj.io/workflow="w"'
    assert log(tmp_path, "w") == f"w 64\n{labels}2\nthere\n"
    assert (status["progress"], status["nodes"]["w"]["progress"]) == ("5/5", "5/5")
    assert status["conditions"] == [{"type": "PodRunning", "status": "False"}, {"type": "Completed", "status": "True"}]


def test_a_data_template_lists_the_paths_of_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"source": {"artifactPaths": {"name": "all", "s3": {"key": "w"}}},
            "transformation": [{"expression": "filter(data, {# endsWith '.txt'})"}]}  # fmt: skip
    text = {"archive": {"none": {}}}
    outputs = [{"name": name, "path": f"/tmp/{name}", **text} for name in ("a.txt", "b.txt", "c")]
    for output in outputs:
        output["name"] = output["name"].partition(".")[0]
    templates = [
        {"name": "main", "dag": {"tasks": [
            {"name": "make", "template": "make"}, {"name": "list", "template": "list", "depends": "make"},
            {"name": "see", "template": "see", "depends": "list", "withParam": "{{tasks.list.outputs.result}}",
             "arguments": {"parameters": [{"name": "x", "value": "{{item}}"}]}}]}},
        {"name": "make", "outputs": {"artifacts": outputs}, "container": sh("cd /tmp; touch a.txt b.txt c")},
        {"name": "list", "data": data},
        {"name": "see", "inputs": {"parameters": [{"name": "x"}]}, "container": sh("echo {{inputs.parameters.x}}")},
    ]  # fmt: skip
    status = ran(tmp_path, monkeypatch, Library(), templates)
    assert status["phase"] == "Succeeded", status
    log_texts = sorted(path.read_text().rpartition("/")[2] for path in (tmp_path / "runs/w/logs").glob("see*"))
    assert log_texts == ["a.txt\n", "b.txt\n"]


def test_without_namespaces_it_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("run.executor", "local_pods.pod"):
        monkeypatch.setattr(f"everstep.runtime.workflow.{module}.has_namespaces", lambda: False)
    twice: dict[str, Any] = {
        "name": "main",
        "steps": [[{"name": "a", "template": "a"}], [{"name": "b", "template": "a"}]],
    }
    out = {"parameters": [{"name": "x", "valueFrom": {"path": "/tmp/everstep-out/x"}}]}
    text = "echo yes > /tmp/everstep-out/x; cat /tmp/everstep-out/x"
    artifact_template: dict[str, Any] = {"name": "a", "outputs": out, "container": sh(text)}
    script = {"name": "script", "outputs": out, "script": {"image": "i", "command": ["sh"], "source": text}}
    beside = {
        **artifact_template,
        "name": "beside",
        "initContainers": [sh("echo > /tmp/everstep-out/y", name="before")],
    }
    twice["steps"] += [[{"name": "c", "template": "script"}], [{"name": "d", "template": "beside"}]]
    status = ran(tmp_path, monkeypatch, Library(), [twice, artifact_template, script, beside])
    assert status["phase"] == "Succeeded", status
    assert capsys.readouterr().err.count("has no namespaces") == 1
    assert not Path("/tmp/everstep-out").exists()
