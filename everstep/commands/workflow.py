"""`everstep workflow run|lint|get|logs|resume|stop`: Argo manifests on this machine."""

import argparse
import json
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.errors import BadInput

if TYPE_CHECKING:
    from runtime.workflow.reading import Document


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verbs and their flags."""
    parser.epilog = "example: everstep workflow run pipeline.yaml --name first"
    verbs = parser.add_subparsers(dest="what", metavar="run|lint|get|logs|resume|stop", required=True)

    def verb(name: str, text: str, positional: str) -> argparse.ArgumentParser:
        below = verbs.add_parser(name, help=text, description=text)
        below.add_argument(positional)
        below.add_argument("--runs", type=Path, default=Path("runs"), help="directory of the run folders")
        return below

    verb("run", "run a manifest here, to its end", "file").add_argument("--name", default="", help="name of the run")
    verb("lint", "say what this machine could not run in a manifest", "file")
    verb("get", "what a run's steps do, or did", "name")
    verb("logs", "the logs of a run's steps and nodes", "name").add_argument("step", nargs="?", default="")
    verb("resume", "take up a run that was stopped, failed, or lost its launcher", "name")
    verb("stop", "stop a run with all its processes; its exit handler still runs", "name")


def run(arguments: argparse.Namespace) -> int:
    """Do it; returns the exit code (0 done, 2 bad input, a failed step's code)."""
    verbs = {"run": _run, "lint": _lint, "get": _get, "logs": _logs, "resume": _resume, "stop": _stop}
    try:
        return verbs[arguments.what](arguments)
    except BadInput as error:
        print(f"everstep workflow {arguments.what}: {error}", file=sys.stderr)
        return 2


def _read(path: Path) -> "Document":
    from runtime.workflow.reading import ReadError, read

    try:
        documents = read(path)
    except ReadError as error:
        raise BadInput(str(error)) from None
    if len(documents) != 1:
        raise BadInput(f"{path}: has {len(documents)} documents; one Workflow can be run")
    return documents[0]


def _run(arguments: argparse.Namespace) -> int:
    document = _read(Path(arguments.file))
    manifest = document.value
    metadata = (manifest.get("metadata") or {}) if isinstance(manifest, dict) else {}
    made_up = f"{metadata.get('generateName', 'workflow-')}{secrets.token_hex(2)}"
    return _execute(manifest, arguments.name or metadata.get("name") or made_up, arguments.runs, document)


def _execute(manifest: Any, name: str, runs: Path, document: "Document | None" = None) -> int:
    from runtime.platform.process import end_nodes
    from runtime.workflow import ManifestError, RunOptions, parse
    from runtime.workflow import run as run_workflow
    from runtime.workflow.view import watch

    try:
        parse(manifest)
        print(name, file=sys.stderr)
        with watch() as show:
            result = run_workflow(manifest, RunOptions(name=name, runs=runs, on_change=show))
    except ManifestError as error:
        where = f"{document.file}:{document.line(error.problems[0].where)}: " if document and error.problems else ""
        raise BadInput(f"{where}{error}") from None
    end_nodes(result.folder)
    print(f"{result.phase.value}  {result.message}".rstrip(), file=sys.stderr)
    return result.exit_code


def _lint(arguments: argparse.Namespace) -> int:
    from runtime.workflow import problems
    from runtime.workflow.schema import dotted

    document = _read(Path(arguments.file))
    found = list(problems(document.value))
    for problem in found:
        place = f"{arguments.file}:{document.line(problem.where)}"
        print(f"{place}: {dotted(problem.where)}: {problem.message}", file=sys.stderr)
    if found:
        return 2
    print(f"{arguments.file}: no errors", file=sys.stderr)
    return 0


def _folder(arguments: argparse.Namespace) -> Path:
    folder = arguments.runs / arguments.name
    if not (folder / "workflow.json").exists():
        raise BadInput(f"{folder}: no such run; `ls {arguments.runs}` shows them")
    return folder


def _get(arguments: argparse.Namespace) -> int:
    status = json.loads((_folder(arguments) / "workflow.json").read_text())["status"]
    print(f"{arguments.name}  {status['phase']}  {status.get('message', '')}".rstrip())
    for node in status["nodes"].values():
        times = f"{node.get('startedAt', '')[11:19]} {node.get('finishedAt', '')[11:19]}"
        print(f"  {node['displayName']:<24} {node['phase']:<10} {times:<18} {node.get('message', '')}".rstrip())
    return 0


def _logs(arguments: argparse.Namespace) -> int:
    logs = sorted((_folder(arguments) / "logs").glob(f"{arguments.step}*.log"))
    if not logs:
        raise BadInput(f"{arguments.name}: no log begins with {arguments.step!r}")
    for path in logs:
        for line in path.read_text(errors="replace").splitlines():
            print(f"{path.stem}: {line}")
    return 0


def _resume(arguments: argparse.Namespace) -> int:
    manifest = json.loads((_folder(arguments) / "manifest.json").read_text())
    return _execute(manifest, arguments.name, arguments.runs)


def _stop(arguments: argparse.Namespace) -> int:
    holder = (_folder(arguments) / "lock").read_text().strip()
    if not holder or not Path(f"/proc/{holder}").exists():
        raise BadInput(f"{arguments.name}: nobody runs it; `everstep workflow resume` takes it up")
    os.kill(int(holder), signal.SIGINT)
    print(f"{arguments.name}: told process {holder} to stop", file=sys.stderr)
    return 0
