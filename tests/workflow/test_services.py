"""Templates that ask a service of the machine or of the network: http, daemons with a probe, artifacts in a bucket."""

import base64
import http.server
import json
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.agent.ports import free_port
from everstep.runtime.store import StoreError
from everstep.runtime.workflow.artifacts.repository import Repository
from everstep.runtime.workflow.manifest.library import Library
from tests.minio import BUCKET, MinIO
from tests.workflow.running import ran


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with the code in the path; the body says what came."""

    def do_POST(self) -> None:
        came = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        self.send_response(int(self.path.strip("/")))
        self.send_header("x-kind", "echo")
        self.end_headers()
        self.wfile.write(f"{self.command} {self.headers.get('token')} {came}".encode())

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    """Of such a server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize(
    ("path", "more", "phase", "message"),
    [
        ("201", {}, "Succeeded", ""),
        ("404", {}, "Failed", "received non-2xx response code: 404"),
        ("404", {"successCondition": "response.statusCode == 404"}, "Succeeded", ""),
        ("200", {"successCondition": 'response.headers["X-Kind"][0] == "echo"'}, "Succeeded", ""),
        ("200", {"successCondition": 'response.body contains "no"'}, "Failed",
         "successCondition 'response.body contains \"no\"' evaluated false"),
    ],
)  # fmt: skip
def test_an_http_template_is_judged_by_its_answer(
    path: str,
    more: dict[str, Any],
    phase: str,
    message: str,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = {"url": f"{address}/{path}", "method": "POST", "body": "hello", **more,
               "headers": [{"name": "token", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}  # fmt: skip
    secret = {"kind": "Secret", "metadata": {"name": "s"}, "data": {"k": base64.b64encode(b"sesame").decode()}}
    status = ran(tmp_path, monkeypatch, Library.from_objects([secret]), [{"name": "main", "http": request}])
    node = status["nodes"]["w"]
    assert (node["type"], node["phase"], node.get("message", "")) == ("HTTP", phase, message)
    assert node["outputs"] == {"result": "POST sesame hello"}


def test_an_http_template_that_gets_no_answer_is_in_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}/"
        status = ran(tmp_path, monkeypatch, Library(), [{"name": "main", "http": {"url": url}}])
    assert status["phase"] == "Error"
    assert status["message"].startswith(f'Get "{url}": ')


SERVER = """
until test -e go; do sleep 0.05; done
exec python -m http.server -b 127.0.0.1 PORT
"""
CLIENT = "import urllib.request as u; print(u.build_opener(u.ProxyHandler({})).open('http://{{inputs.parameters.ip}}:PORT/').status)"


@pytest.mark.parametrize("more", [{}, {"retryStrategy": {"limit": 2}}])
def test_what_comes_after_a_daemon_waits_until_its_probe_passes(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = str(free_port(random.Random()))
    probe = {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 1}
    server = {"image": "i", "command": ["sh", "-c", SERVER.replace("PORT", port)], "readinessProbe": probe,
              "ports": [{"name": "web", "containerPort": int(port)}]}  # fmt: skip
    templates: list[dict[str, Any]] = [
        {"name": "main", "dag": {"tasks": [
            {"name": "server", "template": "server"}, {"name": "go", "template": "go"},
            {"name": "client", "template": "client", "depends": "server",
             "arguments": {"parameters": [{"name": "ip", "value": "{{tasks.server.ip}}"}]}},
        ]}},
        {"name": "server", "daemon": True, "container": server, **more},
        {"name": "go", "container": {"image": "i", "command": ["sh", "-c", "sleep 1; touch go"]}},
        {"name": "client", "inputs": {"parameters": [{"name": "ip"}]},
         "container": {"image": "i", "command": ["python", "-c", CLIENT.replace("PORT", port)]}},
    ]  # fmt: skip
    status = ran(tmp_path, monkeypatch, Library(), templates)
    assert status["phase"] == "Succeeded"
    assert (tmp_path / "runs/w/logs/client.log").read_text() == "200\n"


REPOSITORY = """
s3:
  endpoint: {endpoint}
  bucket: {bucket}
  insecure: true
  keyFormat: "{prefix}/{{{{workflow.name}}}}/{{{{pod.name}}}}"
  accessKeySecret: {{name: minio, key: user}}
  secretKeySecret: {{name: minio, key: password}}
"""


@pytest.mark.parametrize("archive", [{}, {"archive": {"none": {}}}])
def test_artifacts_go_through_the_bucket_that_the_repository_names(
    archive: dict[str, Any], minio: MinIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = minio.new_prefix().rpartition("/")[2]
    text = REPOSITORY.format(endpoint=minio.endpoint.removeprefix("http://"), bucket=BUCKET, prefix=prefix)
    library = Library.from_objects([
        {"kind": "ConfigMap", "metadata": {"name": "artifact-repositories"}, "data": {"mine": text}},
        {"kind": "Secret", "metadata": {"name": "minio"},
         "stringData": {"user": minio.access_key, "password": minio.secret_key}},
    ])  # fmt: skip
    artifact = {"name": "d", "from": "{{steps.make.outputs.artifacts.d}}"}
    templates = [
        {"name": "main", "steps": [[{"name": "make", "template": "make"}],
                                   [{"name": "use", "template": "use", "arguments": {"artifacts": [artifact]}}]]},
        {"name": "make", "outputs": {"artifacts": [{"name": "d", "path": "/tmp/d", **archive}]},
         "container": {"image": "i", "command": ["sh", "-c", "mkdir -p /tmp/d/e; echo hello > /tmp/d/e/f"]}},
        {"name": "use", "inputs": {"artifacts": [{"name": "d", "path": "/tmp/in"}]},
         "container": {"image": "i", "command": ["cat", "/tmp/in/e/f"]}},
    ]  # fmt: skip
    status = ran(tmp_path, monkeypatch, library, templates, artifactRepositoryRef={"key": "mine"})
    assert status["phase"] == "Succeeded", status
    assert (tmp_path / "runs/w/logs/[1].use.log").read_text() == "hello\n"
    assert not (tmp_path / "runs/artifacts").exists()


def test_a_result_of_steps_in_steps_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps(name: str, *inside: Any) -> dict[str, Any]:
        return {"name": name, "steps": [[step] for step in inside]}

    arguments = {"parameters": [{"name": "x", "value": "{{steps.say.outputs.result}}"}]}
    templates = [
        steps("main", {"name": "in", "template": "middle"}),
        steps("middle", {"name": "in", "template": "inner"}),
        steps("inner", {"name": "say", "template": "say"}, {"name": "hear", "template": "hear",
              "arguments": arguments}),
        {"name": "say", "container": {"image": "i", "command": ["echo", "yes"]}},
        {"name": "hear", "inputs": {"parameters": [{"name": "x"}]},
         "container": {"image": "i", "command": ["test", "{{inputs.parameters.x}}", "=", "yes"]}},
    ]  # fmt: skip
    assert ran(tmp_path, monkeypatch, Library(), templates)["phase"] == "Succeeded"


def test_labels_come_from_expressions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    echo = {"name": "main", "container": {"image": "i", "command": ["echo", "{{workflow.labels.kind}}"]}}
    ran(
        tmp_path, monkeypatch, Library(), [echo], workflowMetadata={"labelsFrom": {"kind": {"expression": "'a' + 'b'"}}}
    )
    assert (tmp_path / "runs/w/logs/w.log").read_text() == "ab\n"
    assert json.loads((tmp_path / "runs/w/workflow.json").read_text())["metadata"]["labels"] == {"kind": "ab"}


def test_an_http_artifact_is_asked_for_with_its_headers(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = {"url": f"{address}/200", "headers": [{"name": "token", "value": "sesame"}]}
    templates = [
        {"name": "main", "inputs": {"artifacts": [{"name": "d", "path": "/tmp/in", "http": at}]},
         "container": {"image": "i", "command": ["cat", "/tmp/in"]}},
    ]  # fmt: skip
    status = ran(tmp_path, monkeypatch, Library(), templates)
    assert status["phase"] == "Succeeded", status
    assert (tmp_path / "runs/w/logs/w.log").read_text() == "GET sesame "


def test_what_is_being_saved_is_not_listed(tmp_path: Path) -> None:
    for name in ("w/pod/saved", "w/pod/.fresh-1/packed", "w/.fresh-2/packed/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert Repository(tmp_path, Library()).list_keys({"s3": {"key": "w"}}) == ["w/pod/saved"]


def test_a_bucket_is_reached_with_what_its_secrets_say(tmp_path: Path) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": "t", "ca": "-----BEGIN"}}
    keys = {"accessKeySecret": {"name": "s", "key": "token"}, "secretKeySecret": {"name": "s", "key": "token"}}
    at = {**keys, "endpoint": "minio:9000", "bucket": "b", "sessionTokenSecret": {"name": "s", "key": "token"},
          "caSecret": {"name": "s", "key": "ca"}}  # fmt: skip
    variables = Repository(tmp_path / "artifacts", Library.from_objects([secret])).store_environment(at)
    assert (variables["MINIO_ENDPOINT"], variables["AWS_SESSION_TOKEN"]) == ("https://minio:9000", "t")
    assert Path(variables["AWS_CA_BUNDLE"]).read_text() == "-----BEGIN"


@pytest.mark.parametrize(
    ("mine", "endpoint_fields", "keys", "goes"),
    [
        ("http://mine:9000", {"endpoint": "mine:9000", "insecure": True}, 0, True),
        ("http://mine:9000/", {"endpoint": "MINE:9000", "insecure": True}, 0, True),
        ("http://mine:9000", {"endpoint": "mine:9000"}, 0, False),
        ("https://mine:9000", {"endpoint": "mine:9000", "insecure": True}, 0, False),
        ("http://mine:9000", {"endpoint": "thief:9000", "insecure": True}, 0, False),
        ("http://mine:9000", {"endpoint": "thief:9000", "insecure": True}, 1, False),
        ("http://mine:9000", {"endpoint": "thief:9000", "insecure": True}, 2, True),
        ("", {"endpoint": "thief:9000"}, 0, False),
        ("http://mine:9000", {}, 0, True),
    ],
)
def test_keys_go_only_to_the_endpoint_that_they_were_given_for(
    mine: str, endpoint_fields: dict[str, Any], keys: int, goes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"MINIO_ENDPOINT": mine, "AWS_ACCESS_KEY_ID": "my id", "AWS_SECRET_ACCESS_KEY": "my key",
                        "AWS_SESSION_TOKEN": "my token", "AWS_ENDPOINT_URL": ""}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    secret = {"kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "theirs", "b": "theirs"}}
    own = {"accessKeySecret": {"name": "s", "key": "a"}, "secretKeySecret": {"name": "s", "key": "b"}}
    at = {"bucket": "b", **endpoint_fields, **dict(list(own.items())[:keys])}
    repository = Repository(tmp_path, Library.from_objects([secret]))
    if not goes:
        with pytest.raises(StoreError, match="give it accessKeySecret and secretKeySecret"):
            repository.store_environment(at)
        return
    variables = repository.store_environment(at)
    keys_in_environment = [
        variables.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    ]
    assert keys_in_environment == (["theirs", "theirs", None] if keys else ["my id", "my key", "my token"])
