"""Whose object is it? A create that is repeated must know its own, in every order of what a network and a server do.

The server here plays such an order. It keeps metadata of headers alone, as SeaweedFS does, also of a presigned address.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from everstep.runtime.store import Store, open_store, s3_requests
from tests.examples import examples

MARK = "x-amz-meta-everstep-writer"
OTHERS = "the mark of another writer"


class Fate(Enum):
    """What becomes of one PUT, short of an answer that ends the create."""

    LOST = "the connection is cut, nothing is done"
    UNHEARD = "done, but the connection is cut before the answer"
    LATE = "the connection is cut; it is done after the next request"
    BUSY = "answered 503, not done"
    FAILED = "done, but answered 500"
    CONFLICT = "answered 409 ConditionalRequestConflict, not done"


class Server(ThreadingHTTPServer):
    """One bucket in memory. A PUT is conditional, and the objects are only their writers' marks."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.plan("", [], None)

    def plan(self, name: str, fates: list[Fate], other_at: int | None) -> None:
        """Forget all. The PUTs of `name` meet `fates`; another writer's comes before the one with the number
        `other_at`."""
        self.marks: dict[str, str] = {}
        self.name, self.fates, self.other_at = name, [*fates], other_at
        self.puts, self.late = 0, ""

    def fate(self, path: str, mark: str) -> Fate | None:
        """What becomes of this PUT; None if its answer arrives."""
        if not path.endswith(self.name):
            return None
        if self.puts == self.other_at:
            self.marks.setdefault(path, OTHERS)
        self.puts += 1
        fate = self.fates.pop(0) if self.fates else None
        if fate in (Fate.UNHEARD, Fate.FAILED):
            self.marks.setdefault(path, mark)
        if self.late and fate is not None:  # Where the answer arrives, the object is there, and the late one fails.
            self.marks.setdefault(path, self.late)
        self.late = mark if fate is Fate.LATE else ""
        return fate


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["If-None-Match"] == "*"
        path, mark = self.path.partition("?")[0], self.headers.get(MARK, "")
        fate = self.server.fate(path, mark)
        if fate in (Fate.LOST, Fate.UNHEARD, Fate.LATE):
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
        elif fate is not None:
            self._answer({Fate.BUSY: 503, Fate.FAILED: 500, Fate.CONFLICT: 409}[fate])
        elif path in self.server.marks:
            self._answer(412)
        else:
            self.server.marks[path] = mark
            self._answer(200)

    def do_HEAD(self) -> None:
        mark = self.server.marks.get(self.path.partition("?")[0])
        self._answer(404 if mark is None else 200, mark or "")

    def _answer(self, status: int, mark: str = "") -> None:
        data = b"<Error><Code>ConditionalRequestConflict</Code></Error>" if status == 409 else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if mark:
            self.send_header(MARK, mark)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as BaseHTTPRequestHandler names it)
        """Nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(s3_requests, "FIRST_PAUSE_S", 0.0)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def store(server: Server) -> Store:
    place = f"http://127.0.0.1:{server.server_address[1]}"
    keys = {"AWS_ACCESS_KEY_ID": "a-name", "AWS_SECRET_ACCESS_KEY": "a-secret"}
    return open_store("s3://bucket", environment={"MINIO_ENDPOINT": place, **keys})


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fates=st.lists(st.sampled_from(Fate), max_size=s3_requests.ATTEMPTS - 1),
    other_at=st.none() | st.integers(0, s3_requests.ATTEMPTS - 1),
)
@example([Fate.UNHEARD], None)
@example([Fate.UNHEARD], 1)
@example([Fate.LATE, Fate.LOST], None)
@example([Fate.LATE, Fate.BUSY], 1)
@example([Fate.LOST, Fate.FAILED], 1)
def test_a_create_wins_if_and_only_if_its_own_object_stands(
    server: Server, store: Store, fates: list[Fate], other_at: int | None
) -> None:
    server.plan("/claim", fates, other_at)
    won = store.create("claim", b"the same of both")
    assert server.puts == len(fates) + 1, "each trouble was met"
    assert won == (server.marks["/bucket/claim"] != OTHERS)
