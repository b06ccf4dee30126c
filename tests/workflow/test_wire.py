"""http addresses that lie, break off, redirect or answer garbage: the step ends in one line, nothing secret follows."""

import asyncio
import contextlib
import itertools
import select
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from everstep.runtime.net import web
from everstep.runtime.workflow import RunOptions, execute
from everstep.runtime.workflow.artifacts import remote
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.run.control_requests import ControlRequest, submit_request
from tests.harness import PATIENCE_S, wait_until
from tests.workflow.running import log, ran, sh, workflow
from tests.workflow.test_laptop import BASIC, SECRET


class Wire:
    """A server that reads a request's head and answers with bytes, whatever they are."""

    def __init__(self, answers: dict[str, bytes], host: str = "127.0.0.1") -> None:
        self.answers = answers
        self.heads: list[str] = []
        self._socket = socket.create_server((host, 0))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                head = b""
                while b"\r\n\r\n" not in head and (piece := connection.recv(65536)):
                    head += piece
                self.heads.append(head.decode("latin-1"))
                path = head.split(b" ")[1].decode() if head.count(b" ") > 1 else ""
                connection.sendall(self.answers.get(path, self.answers.get("", b"")))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    """What else it was sent: closed over unread bytes, a connection is reset."""

    def close(self) -> None:
        """No more connections."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ANSWERS = {
    "/short": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc",
    "/bad": b"SSH-2.0-nothing\r\n",
    "/nothing": b"",
    "/chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nabc",
    "/chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
    "/heads": b"HTTP/1.1 200 OK\r\n" + b"".join(b"A: %d\r\n" % n for n in range(200)) + b"\r\n",
    "/long": b"HTTP/1.1 200 OK\r\nA: " + b"a" * 100_000 + b"\r\n\r\n",
    "/file": b"HTTP/1.1 302 Found\r\nLocation: file:///etc/hostname\r\n\r\n",
    "/ftp": b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1/x\r\n\r\n",
    "/round": b"HTTP/1.1 302 Found\r\nLocation: /round\r\n\r\n",
    "/words": b"HTTP/1.1 500 \x1b[2Jgone\r\nContent-Length: 0\r\n\r\n",
    "/list": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    "/deep": b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
    "/ok": OK,
}


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    """That server."""
    server = Wire(ANSWERS)
    yield server
    server.close()


def fetch_artifact(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> dict[str, Any]:
    """The status of a run that asks there for an artifact; its exit handler has run."""
    artifact = {"name": "a", "path": "/tmp/in", "http": {"url": url, **more}}
    main = {"name": "main", "inputs": {"artifacts": [artifact]}, "container": sh("cat /tmp/in")}
    bye = {"name": "bye", "container": sh("echo bye")}
    secrets = {**SECRET, "stringData": {**SECRET["stringData"], "url": more.get("url", "")}}
    status = ran(folder, monkeypatch, Library.from_objects([secrets]), [main, bye], onExit="bye")
    assert log(folder, "onExit") == "bye\n"
    return status


SAID = {
    "/short": "unexpected EOF",
    "/bad": 'Get "URL": malformed HTTP response "SSH-2.0-nothing"',
    "/nothing": 'Get "URL": EOF',
    "/chunk": "unexpected EOF",
    "/chunks": "unexpected EOF",
    "/heads": 'Get "URL": got more than 100 headers',
    "/long": 'Get "URL": got more than 65536 bytes when reading header line',
    "/file": 'Get "URL": unsupported protocol scheme "file"',
    "/ftp": 'Get "URL": unsupported protocol scheme "ftp"',
    "/round": 'Get "URL": stopped after 10 redirects',
    "/words": "loading content from URL failed with reason: 500 \x1b[2Jgone",
}


@pytest.mark.parametrize("path", SAID)
def test_an_artifact_that_does_not_come_whole_ends_the_step_in_one_line(
    path: str, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = fetch_artifact(f"{wire.url}{path}", tmp_path, monkeypatch)
    message = f"init: Error (exit code 64): artifact a failed to load: {SAID[path]}"
    assert (status["phase"], status["message"]) == ("Error", message.replace("URL", f"{wire.url}{path}"))


@pytest.mark.parametrize(
    "url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x", "//x", "", "http://[", "http:///"]
)
def test_only_addresses_of_the_web_are_asked(url: str, tmp_path: Path) -> None:
    with pytest.raises(remote.RemoteError, match=r"\AGet .+\Z"):
        remote.download({"url": url}, Library(), tmp_path / "fetch_artifact")
    assert not (tmp_path / "fetch_artifact").exists()


class Drops:
    """A server that sends a byte now and then, and hears when it is left."""

    def __init__(self, first: bytes) -> None:
        self.first = first
        self.left = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(self.first)
            while True:
                connection.sendall(b"x")
                ready, _, _ = select.select([connection], [], [], 0.01)
                if ready and not connection.recv(65536):
                    break
        self.left.set()

    def close(self) -> None:
        """No more connections."""
        self._socket.close()


@pytest.fixture(params=[b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: "], ids=["the body", "the head"])
def drops(request: pytest.FixtureRequest) -> Iterator[Drops]:
    """Without a Content-Length: the answer has no end."""
    server = Drops(request.param)
    yield server
    server.close()


def test_a_stop_ends_an_artifact_that_comes_drop_by_drop(
    drops: Drops, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    artifact = {"name": "a", "path": "/tmp/in", "http": {"url": drops.url}}
    main = {"name": "main", "inputs": {"artifacts": [artifact]}, "container": sh("cat /tmp/in")}

    async def stop_run() -> Any:
        going = asyncio.create_task(execute(workflow([main]), RunOptions("w", tmp_path / "runs", work_dir=tmp_path)))
        log = tmp_path / "runs/w/events.jsonl"
        await asyncio.to_thread(wait_until, lambda: log.exists() and "PodLoading" in log.read_text(), "the request")
        submit_request(tmp_path / "runs/w", ControlRequest("stop"))
        async with asyncio.timeout(PATIENCE_S):
            return await going

    assert asyncio.run(stop_run()).message == "Stopped with strategy 'Stop'"
    assert drops.left.wait(PATIENCE_S)
    assert not list((tmp_path / "runs").rglob(".load-*"))


def test_a_deadline_ends_an_artifact_that_comes_drop_by_drop(
    drops: Drops, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = {"name": "a", "path": "/tmp/in", "http": {"url": drops.url}}
    main = {"name": "main", "inputs": {"artifacts": [artifact]}, "container": sh("true"), "activeDeadlineSeconds": 1}
    status = ran(tmp_path, monkeypatch, Library(), [main])
    message = "Pod was active on the node longer than the specified deadline"
    assert (status["phase"], status["message"]) == ("Failed", message)


def test_an_answer_that_comes_too_slowly_is_none(drops: Drops, tmp_path: Path) -> None:
    """In a time that passes by a minute a piece."""
    minutes = itertools.count(0.0, 60.0)
    if b"A: " in drops.first:
        with (
            pytest.raises(web.WebError, match="context deadline exceeded"),
            web.open_request(web.Request(drops.url, timeout_s=0.2)),
        ):
            pass
        return
    with web.open_request(web.Request(drops.url)) as answer:
        answer.clock = lambda: next(minutes)
        with pytest.raises(web.WebError, match="less than 1024 bytes came in 60 s"):
            answer.body(1 << 30)


def test_an_artifact_takes_at_most_half_of_what_is_left_on_the_disk(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its length was told or not."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * 50_000))
    body = b"x" * 50_001
    wire.answers["/told"] = b"HTTP/1.1 200 OK\r\nContent-Length: 50001\r\n\r\n" + body
    wire.answers["/untold"] = b"HTTP/1.1 200 OK\r\n\r\n" + body
    for path in ("/told", "/untold"):
        with pytest.raises(remote.RemoteError, match="larger than 50000 bytes, half of what is left"):
            remote.download({"url": f"{wire.url}{path}"}, Library(), tmp_path / "fetch_artifact")


TOKENS = {
    "/short": 'no token: unexpected EOF', "/bad": "no token: Post ", "/ok": "the token endpoint did not send JSON",
    "/list": "the token endpoint sent no access_token", "/deep": "the token endpoint did not send JSON",
    "/words": "the token endpoint answers 500",
}  # fmt: skip


@pytest.mark.parametrize("path", TOKENS)
def test_a_token_that_does_not_come_ends_the_step_in_one_line(path: str, wire: Wire, tmp_path: Path) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "s"}, "stringData": {"url": f"{wire.url}{path}", "id": "a"}}
    oauth2 = {"tokenURLSecret": {"name": "s", "key": "url"}, "clientIDSecret": {"name": "s", "key": "id"}}
    with pytest.raises(remote.RemoteError) as raised:
        remote.download(
            {"url": f"{wire.url}/ok", "auth": {"oauth2": oauth2}},
            Library.from_objects([secret]),
            tmp_path / "fetch_artifact",
        )
    assert str(raised.value).startswith(TOKENS[path])
    assert len(str(raised.value).splitlines()) == 1


def test_no_header_follows_a_redirect_to_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,127.0.0.2,localhost")
    other = Wire({"": OK}, "127.0.0.2")
    same = Wire({"/stay": b"HTTP/1.1 302 Found\r\nLocation: /here\r\n\r\n", "/here": OK,
                 "/go": f"HTTP/1.1 302 Found\r\nLocation: {other.url}/there\r\n\r\n".encode()})  # fmt: skip
    headers = [{"name": "X-Api-Key", "value": "sk-123"}]
    for path in ("/stay", "/go"):
        at = {"url": f"{same.url}{path}", "auth": {"basicAuth": BASIC}, "headers": headers}
        remote.download(at, Library.from_objects([SECRET]), tmp_path / "fetch_artifact")
    answered = web.Request(f"{same.url}/go", headers=[("Authorization", "Bearer x"), ("X-Api-Key", "sk-123")])
    with web.open_request(answered) as answer:
        assert answer.body(10) == b"ok"
    for server in (same, other):
        server.close()
    secret = ["Authorization" in head or "X-Api-Key" in head or "sk-123" in head for head in same.heads + other.heads]
    assert len(same.heads) == 4
    assert len(other.heads) == 2
    assert secret == [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("http://a/x", "http://a:80/y", True), ("http://a/x", "https://a/y", True), ("https://a/x", "http://a/y", False),
     ("http://a/x", "http://a:81/y", False), ("http://a/x", "http://A/y", True), ("http://a/x", "http://b.a/y", False),
     ("https://a:444/x", "https://a/y", False), ("http://a:8080/x", "https://a:8443/y", False)],
)  # fmt: skip
def test_the_same_host_is_the_same_name_and_port(one: str, other: str, same: bool) -> None:
    assert web.same_host(one, other) is same


def test_an_http_template_is_refused_other_schemes_and_ends_in_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bye = {"name": "bye", "container": sh("echo bye")}
    main = {"name": "main", "http": {"url": "file:///etc/hostname"}}
    status = ran(tmp_path, monkeypatch, Library(), [main, bye], onExit="bye")
    message = 'Get "file:///etc/hostname": unsupported protocol scheme "file"'
    assert (status["phase"], status["message"]) == ("Error", message)
    assert log(tmp_path, "onExit") == "bye\n"


@pytest.mark.parametrize("path", ["/short", "/bad", "/file", "/chunk"])
def test_an_http_template_that_is_answered_badly_is_in_error(
    path: str, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bye = {"name": "bye", "container": sh("echo bye")}
    status = ran(
        tmp_path, monkeypatch, Library(), [{"name": "main", "http": {"url": f"{wire.url}{path}"}}, bye], onExit="bye"
    )
    assert (status["phase"], status["message"]) == ("Error", SAID[path].replace("URL", f"{wire.url}{path}"))
    assert log(tmp_path, "onExit") == "bye\n"
    assert "Traceback" not in log(tmp_path, "w")


HEADS = some.lists(
    some.sampled_from([b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 9" + b"9" * 30, b"Location: /x",
                       b"Location: http://[", b"Transfer-Encoding: chunked", b"Content-Encoding: gzip", b"A", b": b",
                       b"Connection: close", b"\xff: \xff", b" folded"]), max_size=4,
).map(b"\r\n".join)  # fmt: skip
STATUS = some.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.1 302 Found", b"HTTP/0.9 200", b"HTTP/1.1 99999 x",
                            b"HTTP/1.1 -1", b"HTTP/1.1 204 No", b"HTTP/2 200", b"200 OK", b"\x16\x03\x01"])  # fmt: skip
GARBAGE = some.one_of(
    some.binary(max_size=200),
    some.tuples(STATUS, HEADS.map(lambda heads: heads + b"\r\n"), some.binary(max_size=30)).map(b"\r\n".join),
)


@settings(max_examples=150)
@given(GARBAGE)
def test_any_answer_is_a_file_or_one_line(wire: Wire, answer: bytes) -> None:
    wire.answers["/any"] = wire.answers["/x"] = answer
    try:
        with web.open_request(web.Request(f"{wire.url}/any")) as came:
            came.body(1000)
    except web.WebError as error:
        problem = str(error)
    else:
        problem = "whole"
    assert len(problem.splitlines()) == 1
