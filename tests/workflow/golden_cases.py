"""What a real Argo 4.1.2 answered, against what the executor does: `python -m tests.workflow.golden_cases FOLDER`.

A case is NAME.yaml (a manifest) with NAME.json (the phase, message and nodes that Argo gave it, or the words with
which its server refused it).
"""

import argparse
import asyncio
import json
import shlex
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from everstep.runtime.workflow import ManifestError, RunOptions, execute
from everstep.runtime.workflow.lint.lint import findings
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.parse import with_arguments
from everstep.runtime.workflow.manifest.yaml_source import read
from everstep.runtime.workflow.run.control_requests import ControlRequest, submit_request
from everstep.runtime.workflow.run.run_folder import generated_name

AT_ONCE, TIMED_AT_ONCE = 40, 10
CLOCKS = ("sleep ", "[sleep,", "activeDeadlineSeconds", "golden/actions", "duration:", "maxAge:", "timeout:")
"""Words of cases whose answer depends on what takes longer: not to be run beside all the others."""
LIMIT_S = 900.0
NAMESPACE = "argo"
HOST = "127.0.0.1"
"""What a recording writes as ADDRESS."""


class Answer(NamedTuple):
    """What one case came to: `agrees`, `phase`, `message`, `nodes` (what differs first), `refused`, `accepted`."""

    verdict: str
    told: str = ""


def manifest_of(path: Path) -> tuple[dict[str, Any], Library]:
    """The case's manifest, as it was submitted: as JSON, in which `n` is a text, and in a namespace."""
    documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    workflow = next(document for document in documents if document.get("kind") == "Workflow")
    workflow.setdefault("metadata", {}).setdefault("namespace", NAMESPACE)
    submitted = json.loads(workflow["metadata"].get("annotations", {}).get("golden/submit", "[]"))
    values = [word.split("=", 1) for flag, word in pairwise(submitted) if flag == "-p"]
    library = Library.from_objects(document for document in documents if document is not workflow)
    return with_arguments(workflow, dict(values)), library


def judged_by_lint(path: Path) -> Answer | None:
    """Of a file that nothing runs, or that was submitted as it stands: whether the lint refuses what Argo refused."""
    documents = read(path)
    of_file = any("golden/file" in str(document.value.get("metadata")) for document in documents)
    if any(document.value["kind"] == "Workflow" for document in documents) and not of_file:
        return None
    wrong = [
        finding
        for document in documents
        for finding in findings(document, Library())
        if finding.error and not finding.target
    ]
    if bool(wrong) == ("refused" in json.loads(path.with_suffix(".json").read_text())):
        return Answer("agrees")
    return Answer("refused", wrong[0].text) if wrong else Answer("accepted")


async def answer(path: Path, runs: Path) -> Answer:
    """Run one case and compare."""
    expected = json.loads(path.with_suffix(".json").read_text())
    if linted := judged_by_lint(path):
        return linted
    try:
        manifest, library = manifest_of(path)
        metadata = manifest.get("metadata") or {}
        made_up_name = generated_name(metadata["generateName"]) if "generateName" in metadata else path.stem
        name = metadata.get("name") or made_up_name
        folder = runs / path.parent.name / path.stem
        actions = json.loads((manifest["metadata"].get("annotations") or {}).get("golden/actions", "[]"))
        acting = [asyncio.create_task(act(folder / name, action)) for action in actions]
        async with asyncio.timeout(LIMIT_S):
            await execute(manifest, RunOptions(name=name, runs=folder, library=library))
            await asyncio.gather(*acting)
    except ManifestError as error:
        if "unfinished" in expected:
            return Answer("endless", str(error))
        return Answer("agrees") if "refused" in expected else Answer("refused", str(error))
    except TimeoutError:
        return Answer("agrees" if "unfinished" in expected else "hangs")
    status_text = (folder / name / "workflow.json").read_text()
    if "name" in expected:
        status_text = status_text.replace(name, f"{name[:-5]}*****")
    status = json.loads(status_text)["status"]
    if "refused" in expected:
        return Answer("accepted", expected["refused"].rpartition("desc = ")[2])
    if "unfinished" in expected:
        messages = [node["message"] for node in status["nodes"].values() if "forever" in node.get("message", "")]
        return (
            Answer("endless", messages[0]) if messages else Answer("phase", f"{status['phase']}, where Argo never ends")
        )
    return compare(expected, status)


async def act(folder: Path, action: dict[str, Any]) -> None:
    """What the argo command did to the run some seconds after it began."""
    await asyncio.sleep(action["after"])
    words = argparse.ArgumentParser()
    words.add_argument("verb", nargs="+")
    for flag in ("node-field-selector", "phase", "message", "output-parameter"):
        words.add_argument(f"--{flag}", default="")
    options = words.parse_args(shlex.split(action["argo"]))
    verb = options.verb[1] if options.verb[0] == "node" else options.verb[0]
    name, equals, value = options.output_parameter.partition("=")
    parameters = {name: value} if equals else {}
    submit_request(
        folder, ControlRequest(verb, options.node_field_selector, options.phase, options.message, parameters)
    )


def compare(expected: dict[str, Any], status: dict[str, Any]) -> Answer:
    """The first kind of difference, gravest first."""
    ours = {node["name"]: node for node in status["nodes"].values()}
    theirs = {name: {**node, "name": name} for name, node in expected["nodes"].items()}
    for verdict, fields in (
        ("phase", ("phase",)),
        ("message", ("message",)),
        ("nodes", ("id", "type", "templateName", "templateRef", "displayName", "boundaryID")),
        ("inputs", ("inputs",)),
        ("outputs", ("outputs",)),
        ("children", ("children", "outboundNodes")),
    ):
        differences = []
        if verdict in ("phase", "message", "outputs") and view(expected, verdict) != view(status, verdict):
            differences.append(f"workflow: {view(status, verdict)!r}, wanted {view(expected, verdict)!r}")
        if verdict == "phase":
            differences += [f"{name}: no such node here" for name in sorted(theirs.keys() - ours.keys())]
            differences += [f"{name}: no such node on Argo" for name in sorted(ours.keys() - theirs.keys())]
        for name in sorted(ours.keys() & theirs.keys()):
            for field in fields:
                if view(ours[name], field) != view(theirs[name], field):
                    differences.append(
                        f"{name}.{field}: {view(ours[name], field)!r}, wanted {view(theirs[name], field)!r}"
                    )
        if differences:
            return Answer(verdict, "; ".join(differences))
    return Answer("agrees")


def view(node: dict[str, Any], field: str) -> Any:
    """A field as it is compared."""
    value = node.get(field)
    if field in ("children", "outboundNodes"):
        return sorted(value or [])
    if field in ("inputs", "outputs"):
        value = value or {}
        values = {entry["name"]: entry.get("value") for entry in value.get("parameters") or []}
        return {
            "parameters": {name: "ADDRESS" if text == HOST else text for name, text in values.items()},
            "artifacts": sorted(
                name for entry in value.get("artifacts") or [] if not (name := entry["name"]).endswith("-logs")
            ),
            "result": value.get("result"),
            "exitCode": value.get("exitCode"),
        }
    return value or ""


def is_log(artifact: dict[str, Any]) -> bool:
    """An artifact that the recording cluster made of each container's log."""
    return artifact["name"].endswith("-logs")


async def answers(paths: list[Path], runs: Path) -> dict[str, Answer]:
    """All of them, some at once; those that depend on the clock after the others, then those that serve."""
    timed = [path for path in paths if any(word in path.read_text() for word in CLOCKS)]
    serving = [path for path in paths if "port: 8000" in path.read_text()]  # All pods share this machine's ports.
    others = [path for path in paths if path not in (*timed, *serving)]
    answers_now = await _answers(others, runs, AT_ONCE)
    return answers_now | await _answers(timed, runs, TIMED_AT_ONCE) | await _answers(serving, runs, 1)


async def _answers(paths: list[Path], runs: Path, at_once: int) -> dict[str, Answer]:
    free = asyncio.Semaphore(at_once)

    async def one(path: Path) -> Answer:
        async with free:
            return await answer(path, runs)

    gathered_answers = await asyncio.gather(*map(one, paths), return_exceptions=True)
    return {
        f"{path.parent.name}/{path.stem}": Answer("crash", repr(answer_or_error))
        if isinstance(answer_or_error, BaseException)
        else answer_or_error
        for path, answer_or_error in zip(paths, gathered_answers, strict=True)
    }


def main() -> None:
    """Print a line for each case that does not agree, and the counts."""
    paths = [path for folder in sys.argv[1:] for path in sorted(Path(folder).glob("**/*.yaml"))]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as runs:
        answers_by_case = asyncio.run(answers(paths, Path(runs)))
    for name, outcome in sorted(answers_by_case.items(), key=lambda pair: (pair[1].verdict, pair[0])):
        if outcome.verdict != "agrees":
            print(f"{outcome.verdict:<9} {name}: {outcome.told[:1000]!r}")
    counts = Counter(outcome.verdict for outcome in answers_by_case.values())
    print(dict(counts.most_common()), f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
