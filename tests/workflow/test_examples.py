"""Argo's published examples end here as on Argo: `ARGO_EXAMPLES=DIR pytest tests/workflow/test_examples.py`.

DIR is the folder `examples` of the project; with Go it is had by
`go mod download -json github.com/argoproj/argo-workflows/v4@v4.0.2`, below the "Dir" that this prints. Left out in CI.
What was expected before running stands in `published`; what came is written to examples.json beside this file.
"""

import asyncio
import http.server
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from everstep.runtime.workflow import ManifestError, RunOptions, execute
from everstep.runtime.workflow.lint.lint import findings
from everstep.runtime.workflow.manifest.files import load_each
from everstep.runtime.workflow.manifest.library import KINDS, Library
from everstep.runtime.workflow.manifest.yaml_source import Document, read
from everstep.runtime.workflow.run.control_requests import submit_request
from tests.workflow.published import CLUSTER, DICE_OF, EXPECTED, IMAGES, OBJECTS, PROGRAMS

EXAMPLES = os.environ.get("ARGO_EXAMPLES")
TABLE = Path(__file__).with_name("examples.json")
ADDRESSES = {
    "https://raw.githubusercontent.com/": "ok/",
    "https://httpbin.org/status/": "status/",
    "https://google.com": "google",
    "https://datahub.io/": "ok/",
}
"""What of the Internet a server of this test stands for."""
AT_ONCE = 12
LIMIT_S = 900.0
pytestmark = pytest.mark.skipif(not EXAMPLES, reason="ARGO_EXAMPLES names no folder of Argo's published examples")


class Came(NamedTuple):
    """How one ended."""

    phase: str
    message: str = ""


class Anywhere(http.server.BaseHTTPRequestHandler):
    """The Internet: /status/N answers so, /google tells of google, a bad hash is not found."""

    def do_GET(self) -> None:
        code = int(self.path.rpartition("/")[2]) if self.path.startswith("/status/") else 200
        self.send_response(404 if "thisisnotahash" in self.path else code)
        self.end_headers()
        self.wfile.write(b"google says hello\n")

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def documents() -> dict[str, Document]:
    """Every object among the examples, by FILE#NAME."""
    folder, documents = Path(str(EXAMPLES)), {}
    for path in sorted(folder.rglob("*.yaml")):
        for document in read(path):
            metadata = document.value.get("metadata") or {}
            name = metadata.get("name") or metadata.get("generateName")
            documents[f"{path.relative_to(folder).with_suffix('')}#{document.value['kind']}#{name}"] = document
    return documents


def with_address(value: Any, address: str) -> Any:
    """An object whose addresses are those of the server that stands for the Internet."""
    text = json.dumps(value)
    for outside, here in ADDRESSES.items():
        text = text.replace(outside, address + here)
    return json.loads(text)


def workflow(case: str, documents: dict[str, Document]) -> Document:
    """The Workflow of a case; a template that is submitted by its name becomes one that refers to it."""
    file, _, template = case.partition("@")
    file, _, name = file.partition("#")
    for key, document in documents.items():
        place, kind, own = key.split("#")
        if place != file:
            continue
        if template and own == template:
            reference = {"name": own, "clusterScope": kind.startswith("Cluster")}
            value = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"generateName": f"{own}-"},
                     "spec": {"workflowTemplateRef": reference}}  # fmt: skip
            return Document(value, document.file, {}, [])
        if not template and kind == "Workflow" and name in ("", own):
            return document
    raise LookupError(case)


@pytest.fixture(scope="module")
def objects() -> dict[str, Document]:
    """All objects."""
    return documents()


@pytest.fixture(scope="module")
def library(objects: dict[str, Document], address: str) -> Library:
    """What examples refer to."""
    values = [
        object_.value
        for object_ in objects.values()
        if object_.value["kind"] in KINDS and object_.value["kind"] != "Workflow"
    ]
    values = [with_address(value, address) for value in values]
    images = {name: command.split() for name, command in IMAGES.items()}
    return Library.from_objects([*values, *yaml.safe_load_all(OBJECTS)], images)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of the server that stands for the Internet."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Anywhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, objects: dict[str, Document],
    library: Library, address: str,
) -> dict[str, Came]:  # fmt: skip
    """The examples that are asked for, run side by side once, in the folder in which their containers would begin."""
    folder = tmp_path_factory.mktemp("examples")
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    chosen_cases = {item.callspec.params["case"] for item in items if "outcomes" in item.fixturenames}
    sources = {case: workflow(case, objects).value for case in EXPECTED if case in chosen_cases}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            patch.delenv(name, raising=False)
        patch.setenv("PYTHONPATH", str(folder / "dice"))
        _programs(folder)
        patch.chdir("/")
        cases = asyncio.run(_all(sources, library, folder, address))
    if len(cases) == len(EXPECTED):
        outcomes_by_case = {
            case: {"expected": EXPECTED[case].phase, **outcome._asdict()} for case, outcome in cases.items()
        }
        TABLE.write_text(json.dumps(outcomes_by_case, indent=1, sort_keys=True) + "\n")
    return cases


def _programs(folder: Path) -> None:
    (folder / "dice").mkdir()
    (folder / "dice" / "sitecustomize.py").write_text(DICE_OF)
    for kind in ("programs", "real"):
        (folder / kind).mkdir()
        for name, text in PROGRAMS.items():
            if kind == "programs" or name != "sleep":
                (folder / kind / name).write_text(text.replace("#!PYTHON", f"#!{sys.executable}"))
                (folder / kind / name).chmod(0o755)


async def _all(sources: dict[str, Any], library: Library, folder: Path, address: str) -> dict[str, Came]:
    free = asyncio.Semaphore(AT_ONCE)

    async def one(case: str) -> Came:
        async with free:
            return await _run(case, sources[case], library, folder, address)

    return dict(zip(sources, await asyncio.gather(*map(one, sources)), strict=True))


async def _run(case: str, source: dict[str, Any], library: Library, folder: Path, address: str) -> Came:
    expected, name = EXPECTED[case], f"e{list(EXPECTED).index(case)}"
    programs = folder / ("real" if expected.real_time else "programs")
    options = RunOptions(name, folder / "runs", library, (programs,))
    helping = asyncio.create_task(_help(case, options))
    try:
        async with asyncio.timeout(LIMIT_S):
            finished_run = await execute(with_address(source, address), options)
    except ManifestError as error:
        return Came("refused", str(error))
    except TimeoutError:
        return Came("Running", f"after {LIMIT_S:.0f} s")
    finally:
        helping.cancel()
    return Came(finished_run.phase.value, finished_run.message)


async def _help(case: str, options: RunOptions) -> None:
    """Be the person for whom a suspended step waits."""
    status = options.runs / options.name / "workflow.json"
    for wish in EXPECTED[case].asks:
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until and not (status.exists() and b'"Suspend"' in status.read_bytes()):
            await asyncio.sleep(0.2)
        submit_request(options.runs / options.name, wish)


@pytest.mark.parametrize("case", EXPECTED)
def test_it_ends_as_on_argo(case: str, outcomes: dict[str, Came]) -> None:
    assert outcomes[case].phase == EXPECTED[case].phase, outcomes[case].message


@pytest.mark.parametrize("case", EXPECTED)
def test_the_lint_does_not_accuse_it(case: str, objects: dict[str, Document], library: Library) -> None:
    assert [finding for finding in findings(workflow(case, objects), library) if finding.error] == []


def test_none_alone_is_called_wrong() -> None:
    loaded = [workflow for path in sorted(Path(str(EXAMPLES)).rglob("*.yaml")) for workflow in load_each([path])]
    raised_findings = [
        item for workflow in loaded for item in findings(workflow.document, workflow.library, workflow.others)
    ]
    assert [
        finding.text_with_place for finding in raised_findings if finding.level == "wrong" or finding.code == "script"
    ] == []


def test_every_example_is_expected_or_needs_a_named_service(objects: dict[str, Document]) -> None:
    case_files = {case.partition("@")[0].partition("#")[0] for case in [*EXPECTED, *CLUSTER]}
    kinds = ("Workflow", "CronWorkflow", "WorkflowEventBinding")
    assert {key.split("#")[0] for key in objects if key.split("#")[1] in kinds} - case_files == set()
