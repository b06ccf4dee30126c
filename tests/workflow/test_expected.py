"""Rules that no recorded answer tells, against what the executor does: `expected/`.

NAME.yaml is a manifest; NAME.json says what Argo's and Kubernetes' documentation promise for it, by a `source`: phase,
message, nodes by name (what is not said of one is not compared), which of them a retry has `kept` or run `again`. Its
`actions` are what the argo command does to the run, each as soon as the named nodes have the named phases.
"""

import asyncio
import base64
import http.server
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from minio import Minio

from everstep.runtime.workflow import RunOptions, execute
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.manifest.library import Library
from tests.minio import BUCKET, MinIO

EXPECTED = Path(__file__).with_name("expected")
CASES = sorted(path.stem for path in EXPECTED.glob("*.yaml"))
IN_A_BUCKET = {"data-bucket", "data-failing"}
PATIENCE_S = 240.0


class Guarded(http.server.BaseHTTPRequestHandler):
    """Keeps what is PUT; everything but a tree wants a name, a password and a header."""

    kept: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        if self.path == "/tree.tgz":
            self._answer(200, tree())
        elif self.path == "/absent":
            self._answer(404)
        elif not self._known():
            self._answer(401)
        elif self.path == "/guarded":
            self._answer(200, b"guarded by a name and a team\n")
        else:
            self._answer(200 if self.path in self.kept else 404, self.kept.get(self.path, b""))

    def do_PUT(self) -> None:
        came = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self._known():
            self.kept[self.path] = came
        self._answer(201 if self._known() else 401)

    def _known(self) -> bool:
        user = base64.b64encode(b"reader:open sesame").decode()
        return (self.headers.get("authorization"), self.headers.get("x-team")) == (f"Basic {user}", "blue")

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def tree() -> bytes:
    """A gzipped tarball of a folder."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in {"tree/leaf": b"leaf of the tree\n", "tree/branch/leaf": b"leaf of the branch\n"}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return packed.getvalue()


def repository(folder: Path) -> dict[str, str]:
    """A bare repository: two commits on main, one more on each of a branch and a reference that no clone has."""
    work, bare = folder / "work", folder / "code.git"
    me = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for role in ("AUTHOR", "COMMITTER"):
        me |= {f"GIT_{role}_NAME": "Somebody", f"GIT_{role}_EMAIL": "somebody@example.org"}

    def git(*words: str) -> str:
        command = ["git", "-C", str(work), *words]
        return subprocess.run(command, env={**os.environ, **me}, capture_output=True, check=True, text=True).stdout

    def commit(where: str) -> str:
        (work / "where").write_text(f"{where}\n")
        git("add", "where")
        git("commit", "-q", "-m", where)
        return git("rev-parse", "HEAD").strip()

    work.mkdir()
    git("init", "-q", "-b", "main")
    first = commit("first")
    git("tag", "v1")
    git("checkout", "-q", "-b", "side")
    commit("side")
    git("checkout", "-q", "-b", "changed", "main")
    change = commit("change")
    git("checkout", "-q", "main")
    commit("main")
    git("init", "-q", "--bare", "-b", "main", str(bare))
    git("push", "-q", str(bare), "main", "side", "v1", "changed:refs/changes/1/head")
    return {"repo": str(bare), "first": first, "change": change}


class Serving(http.server.ThreadingHTTPServer):
    """Keeps why a request got no answer: its client sees no more than the end of the connection."""

    request_queue_size = 128  # All cases ask at once.

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Guarded)
        self.errors: list[str] = []

    def handle_error(self, *_: Any) -> None:
        self.errors.append(traceback.format_exc())


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a `Guarded`."""
    with Serving() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()
    assert not running.errors, "\n".join(running.errors)


def filled_bucket_facts(bucket: MinIO) -> dict[str, str]:
    """Some logs in a bucket: what a manifest is told of it."""
    endpoint = bucket.endpoint.removeprefix("http://")
    client = Minio(endpoint, bucket.access_key, bucket.secret_key, secure=False)
    for key in ("logs/a.log", "logs/b.txt", "logs/deep/c.log", "logs-of-others/d.log", "logs/folder/"):
        client.put_object(BUCKET, key, io.BytesIO(b"x"), 1)
    return {"endpoint": endpoint, "bucket": BUCKET, "@ACCESS@": bucket.access_key, "@SECRET@": bucket.secret_key}


Status = Mapping[str, Any]


class Run:
    """One case, run."""

    def __init__(self, name: str, runs: Path, places: Mapping[str, str]) -> None:
        self.name = name
        self.runs = runs
        self.wanted = json.loads((EXPECTED / f"{name}.json").read_text())
        self._places = places
        self._before: Status = {}
        self._phases: dict[str, str] = {}
        self._changed = asyncio.Event()
        self.told: list[str] = []

    async def told_otherwise(self) -> list[str]:
        """What came otherwise than it was expected."""
        text = (EXPECTED / f"{self.name}.yaml").read_text()
        for word in ("@ACCESS@", "@SECRET@"):
            text = text.replace(word, self._places.get(word, ""))
        *others, manifest = yaml.safe_load_all(text)
        manifest["metadata"]["namespace"] = "argo"
        for entry in manifest["spec"].get("arguments", {}).get("parameters", []):
            entry["value"] = self._places.get(entry["name"], entry.get("value"))
        acting = asyncio.create_task(self._act())
        async with asyncio.timeout(PATIENCE_S):
            finished_run = await execute(
                manifest, RunOptions(self.name, self.runs, Library.from_objects(others), on_change=self._look)
            )
            self._phases["workflow"] = finished_run.phase.value
            self._changed.set()
            await acting
        self._compare()
        return self.told

    def status(self) -> Status:
        """As it is written."""
        return json.loads((self.runs / self.name / "workflow.json").read_text())["status"]

    def _look(self, engine: Engine, _: Path) -> None:
        self._phases |= {node.name: node.phase.value for node in engine.state.nodes.values()}
        self._changed.set()

    async def _act(self) -> None:
        for action in self.wanted.get("actions", []):
            while not action["when"].items() <= self._phases.items():
                self._changed.clear()
                await self._changed.wait()
            words = shlex.split(action["argo"].removeprefix("node "))
            if words[0] == "retry":
                self._before = self.status()
            command = [sys.executable, "-m", "everstep", "workflow", *words, "--runs", str(self.runs)]
            process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
            _, output = await process.communicate()
            if (process.returncode == 2) != ("refused" in action):
                self.told.append(f"{action['argo']}: {process.returncode} {output.decode()[-300:]}")

    def _compare(self) -> None:
        status = self.status()
        nodes = {node["name"]: node for node in status["nodes"].values()}
        self._same("workflow", {name: self.wanted[name] for name in FIELDS if name in self.wanted}, status)
        for name in sorted(nodes.keys() ^ self.wanted["nodes"].keys()):
            self.told.append(f"{name}: {'not expected' if name in nodes else 'not there'}")
        for name in sorted(nodes.keys() & self.wanted["nodes"].keys()):
            self._same(name, self.wanted["nodes"][name], nodes[name])
        before = {node["name"]: node.get("outputs") for node in self._before.get("nodes", {}).values()}
        for name in (*self.wanted.get("kept", []), *self.wanted.get("again", [])):
            if (before.get(name) == nodes.get(name, {}).get("outputs")) != (name in self.wanted["kept"]):
                self.told.append(f"{name}: {'ran again' if name in self.wanted['kept'] else 'did not run again'}")

    def _same(self, name: str, expected_fields: Mapping[str, Any], ours: Status) -> None:
        for field, value in expected_fields.items():
            if field == "message_matches":
                if not re.search(value, ours.get("message", "")):
                    self.told.append(f"{name}.message: {ours.get('message')!r}, wanted {value!r}")
            elif (actual := view(ours, field, value)) != value:
                self.told.append(f"{name}.{field}: {actual!r}, wanted {value!r}")


FIELDS = ("phase", "message", "progress", "outputs")


def view(ours: Status, field: str, expected_fields: Any) -> Any:
    """A field as an expectation writes it; of outputs only what it names."""
    our_field = ours.get(field)
    if field != "outputs":
        return our_field or ""
    our_field = our_field or {}
    short: dict[str, Any] = {
        **our_field,
        "parameters": {entry["name"]: entry.get("value") for entry in our_field.get("parameters", [])},
        "artifacts": sorted(entry["name"] for entry in our_field.get("artifacts", [])),
    }
    return {name: short.get(name) for name in expected_fields}


@pytest.fixture(scope="module")
def outcomes(
    tmp_path_factory: pytest.TempPathFactory, server: str, request: pytest.FixtureRequest
) -> dict[str, list[str]]:
    """All cases, run side by side once."""
    folder = tmp_path_factory.mktemp("expected")
    places = {**repository(folder), "server": server}
    cases = CASES
    try:
        places |= filled_bucket_facts(request.getfixturevalue("minio"))
    except pytest.skip.Exception:
        cases = [case for case in CASES if case not in IN_A_BUCKET]

    async def all_of_them() -> list[list[str] | BaseException]:
        runs = [Run(case, folder / "runs", places).told_otherwise() for case in cases]
        return await asyncio.gather(*runs, return_exceptions=True)

    cases_with_results = zip(cases, asyncio.run(all_of_them()), strict=True)
    return {case: [repr(came)] if isinstance(came, BaseException) else came for case, came in cases_with_results}


@pytest.mark.parametrize("case", CASES)
def test_it_ends_as_the_documentation_says(case: str, outcomes: dict[str, list[str]]) -> None:
    if case not in outcomes:
        pytest.skip("MinIO cannot be built here")
    assert not outcomes[case], "\n".join(outcomes[case])
