"""`everstep workflow run|lint|get|logs|list|resume|retry|stop|terminate|set`: Argo manifests on this machine."""

import argparse
import json
import os
import secrets
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.errors import BadInput

if TYPE_CHECKING:
    from runtime.workflow.asks import Ask
    from runtime.workflow.files import Loaded
    from runtime.workflow.library import Library

PHASE_WIDTH = 10
STOPPED = 130


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verbs and their flags."""
    parser.epilog = "example: everstep workflow run pipeline.yaml -n first -p nodes=2"
    verbs = parser.add_subparsers(dest="what", metavar="VERB", required=True)

    def verb(name: str, text: str, *positional: str) -> argparse.ArgumentParser:
        below = verbs.add_parser(name, help=text, description=text)
        for one in positional:
            below.add_argument(one.rstrip("+"), nargs="+" if one.endswith("+") else None)
        below.add_argument("--runs", type=Path, default=Path("runs"), help="directory of the run folders")
        return below

    ran = verb("run", "run a workflow here, to its end", "file+")
    ran.add_argument("-n", "--name", default="", help="name of the run; empty: the workflow's, or made up")
    ran.add_argument("-p", "--parameter", action="append", default=[], metavar="NAME=VALUE", help="a parameter's value")
    ran.add_argument("--parameter-file", type=Path, help="YAML or JSON map of parameters")
    ran.add_argument("--entrypoint", default="", help="another template to begin with")
    ran.add_argument("-o", "--output", choices=["json", "yaml", "name"], default="", help="print the run at its end")
    ran.add_argument("--path", type=Path, action="append", default=[], metavar="DIR",
                     help="programs that only an image brings, for every pod's PATH")  # fmt: skip
    ran.add_argument("--work-dir", type=Path, default=None, help="where the pods work; empty: here")
    checked = verb("lint", "say what is wrong with a workflow, before it runs anywhere", "file+")
    checked.add_argument("--format", choices=["text", "json", "sarif"], default="text", help="for people, or programs")
    for below in (ran, checked):
        below.add_argument("--with", dest="with_", type=Path, action="append", default=[], metavar="DIR",
                           help="WorkflowTemplates, ConfigMaps and Secrets that it refers to")  # fmt: skip
        below.add_argument("--image", action="append", default=[], metavar="NAME=COMMAND",
                           help="what an image runs whose container names no command")  # fmt: skip
    shown = verb("get", "what a run's steps do, or did", "name")
    shown.add_argument(
        "-o", "--output", choices=["json", "yaml"], default="", help="the whole Workflow with its status"
    )
    logs = verb("logs", "the logs of a run's steps and nodes", "name")
    logs.add_argument("step", nargs="?", default="", help="only logs whose name begins so")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    verb("list", "the runs, newest last")
    _selecting(verb("resume", "let suspended steps go on; take up a run that lost its launcher", "name"))
    verb("retry", "take up a run that failed or was stopped: what did not succeed runs again", "name")
    verb("stop", "stop a run with all its processes; its exit handler still runs", "name")
    verb("terminate", "stop a run at once, without its exit handler", "name")
    given = _selecting(verb("set", "give a suspended step its outputs, or its end", "name"))
    given.add_argument("--phase", choices=["Succeeded", "Failed", "Error"], default="")
    given.add_argument("--message", default="")
    given.add_argument("--output-parameter", action="append", default=[], metavar="NAME=VALUE")


def _selecting(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--node-field-selector", default="", metavar="FIELD=VALUE,...", help="only such steps")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Do it; returns the exit code (0 done, 1 failed, 2 bad input, 130 stopped)."""
    verbs = {
        "run": _run, "lint": _lint, "get": _get, "logs": _logs, "list": _list, "resume": _resume, "retry": _retry,
        "stop": _stop, "terminate": _stop, "set": _set,
    }  # fmt: skip
    try:
        return verbs[arguments.what](arguments)
    except BadInput as error:
        print(f"everstep workflow {arguments.what}: {error}", file=sys.stderr)
        return 2


def _load(arguments: argparse.Namespace) -> "Loaded":
    from runtime.workflow import ManifestError
    from runtime.workflow.files import load

    try:
        images = {name: shlex.split(command) for name, command in _pairs(arguments.image, "--image").items()}
        return load([Path(file) for file in arguments.file], arguments.with_, images)
    except ManifestError as error:
        raise BadInput(str(error)) from None


def _pairs(texts: list[str], flag: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if not name or not equals:
            raise BadInput(f"{flag} {name or value!r}: write NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _parameters(arguments: argparse.Namespace) -> dict[str, str]:
    from runtime.workflow.expressions.values import parameter_text
    from runtime.workflow.reading import ReadError, read

    values: dict[str, str] = {}
    if arguments.parameter_file:
        try:
            found = read(arguments.parameter_file)
        except ReadError as error:
            raise BadInput(str(error)) from None
        if len(found) != 1 or not isinstance(found[0].value, Mapping):
            raise BadInput(f"{arguments.parameter_file}: is no map of parameters")
        values = {str(name): parameter_text(value) for name, value in found[0].value.items()}
    return {**values, **_pairs(arguments.parameter, "-p")}


def _run(arguments: argparse.Namespace) -> int:
    from runtime.workflow import ManifestError, parse
    from runtime.workflow.files import with_arguments

    loaded = _load(arguments)
    manifest = with_arguments(loaded.document.value, _parameters(arguments), arguments.entrypoint)
    try:
        parse(manifest, loaded.library)
    except ManifestError as error:
        place = loaded.document.line(error.problems[0].where) if error.problems else 1
        raise BadInput(f"{loaded.document.file}:{place}: {error}") from None
    metadata = manifest.get("metadata") or {}
    made_up = f"{metadata.get('generateName', 'workflow-')}{secrets.token_hex(2)}"
    name = arguments.name or metadata.get("name") or made_up
    runs = arguments.runs.absolute()
    if arguments.work_dir:
        os.chdir(arguments.work_dir)
    path = tuple(one.absolute() for one in arguments.path)
    code = _execute(manifest, name, runs, loaded.library, path)
    _print_run(runs / name, arguments.output)
    return code


def _print_run(folder: Path, output: str) -> None:
    if output == "name":
        print(folder.name)
    elif output:
        _dump(json.loads((folder / "workflow.json").read_text()), output)


def _dump(value: Any, output: str) -> None:
    if output == "json":
        print(json.dumps(value, indent=2))
    else:
        import yaml

        print(yaml.safe_dump(value, sort_keys=False), end="")


def _execute(manifest: Any, name: str, runs: Path, library: "Library", path: tuple[Path, ...]) -> int:
    from runtime.platform.process import end_nodes
    from runtime.workflow import ManifestError, RunOptions
    from runtime.workflow import run as run_workflow
    from runtime.workflow.view import watch

    try:
        print(name, file=sys.stderr)
        with watch() as show:
            result = run_workflow(manifest, RunOptions(name, runs, library, path, show))
    except ManifestError as error:
        raise BadInput(str(error)) from None
    end_nodes(result.folder)
    print(f"{result.phase.value}  {result.message}".rstrip(), file=sys.stderr)
    return result.exit_code if result.exit_code in (0, STOPPED) else 1


def _lint(arguments: argparse.Namespace) -> int:
    from runtime.workflow.lint import as_json, as_sarif, findings

    loaded = _load(arguments)
    file = loaded.document.file
    found = findings(loaded.document, loaded.library)
    if arguments.format == "text":
        for one in found:
            print(one.told(file), file=sys.stderr)
        warnings = sum(not one.error for one in found)
        print(f"{file}: {len(found) - warnings} errors, {warnings} warnings", file=sys.stderr)
    else:
        shown = as_json(found, file) if arguments.format == "json" else as_sarif(found, file)
        print(json.dumps(shown, indent=2))
    return 2 if any(one.error for one in found) else 0


def _folder(arguments: argparse.Namespace) -> Path:
    folder = arguments.runs / arguments.name
    if not (folder / "workflow.json").exists():
        raise BadInput(f"{folder}: no such run; `everstep workflow list --runs {arguments.runs}` shows them")
    return folder


def _workflow(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "workflow.json").read_text())


def _get(arguments: argparse.Namespace) -> int:
    folder = _folder(arguments)
    if arguments.output:
        _dump(_workflow(folder), arguments.output)
        return 0
    status = _workflow(folder)["status"]
    print(f"{arguments.name}  {status['phase']}  {status.get('message', '')}".rstrip())
    for node in status["nodes"].values():
        times = f"{node.get('startedAt', '')[11:19]} {node.get('finishedAt', '')[11:19]}"
        line = f"  {node['displayName']:<24} {node['phase']:<{PHASE_WIDTH}} {times:<18} {node.get('message', '')}"
        print(line.rstrip())
    return 0


def _list(arguments: argparse.Namespace) -> int:
    found = [_workflow(path.parent) for path in arguments.runs.glob("*/workflow.json")]
    for one in sorted(found, key=lambda one: one["status"]["startedAt"]):
        status = one["status"]
        times = f"{status['startedAt'][:19]} {status.get('finishedAt', '')[:19]}"
        print(f"{one['metadata']['name']:<32} {status['phase']:<{PHASE_WIDTH}} {times}".rstrip())
    return 0


def _logs(arguments: argparse.Namespace) -> int:
    folder = _folder(arguments)
    shown: dict[Path, int] = {}
    while True:
        over = _launcher(folder) is None
        for path in sorted((folder / "logs").glob(f"{arguments.step}*.log")):
            with path.open("rb") as file:
                file.seek(shown.get(path, 0))
                text = file.read()
            text = text if over or not arguments.follow else text[: text.rfind(b"\n") + 1]
            shown[path] = shown.get(path, 0) + len(text)
            for line in text.decode(errors="replace").splitlines():
                print(f"{path.stem}: {line}", flush=True)
        if not arguments.follow or over:
            break
        time.sleep(0.3)
    if not shown:
        raise BadInput(f"{arguments.name}: no log begins with {arguments.step!r}")
    return 0


def _launcher(folder: Path) -> str | None:
    """The process that runs it; None when there is none."""
    import fcntl

    with (folder / "lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return lock.read(20).decode()
        return None


def _ask(arguments: argparse.Namespace, wish: "Ask") -> int:
    from runtime.workflow.asks import AskError, ask

    folder = _folder(arguments)
    holder = _launcher(folder)
    if holder is None:
        raise BadInput(f"{arguments.name}: nobody runs it; `everstep workflow resume {arguments.name}` takes it up")
    try:
        ask(folder, wish)
    except AskError as error:
        raise BadInput(str(error)) from None
    print(f"{arguments.name}: asked process {holder} to {arguments.what}", file=sys.stderr)
    return 0


def _resume(arguments: argparse.Namespace) -> int:
    from runtime.workflow.asks import Ask

    if _launcher(_folder(arguments)) is not None:
        return _ask(arguments, Ask("resume", arguments.node_field_selector))
    return _retry(arguments)


def _retry(arguments: argparse.Namespace) -> int:
    from runtime.workflow.executor import beside

    folder = _folder(arguments)
    manifest = json.loads((folder / "manifest.json").read_text())
    return _execute(manifest, arguments.name, arguments.runs, *beside(folder))


def _stop(arguments: argparse.Namespace) -> int:
    from runtime.workflow.asks import Ask

    return _ask(arguments, Ask(arguments.what))


def _set(arguments: argparse.Namespace) -> int:
    from runtime.workflow.asks import Ask

    values = _pairs(arguments.output_parameter, "--output-parameter")
    return _ask(arguments, Ask("set", arguments.node_field_selector, arguments.phase, arguments.message, values))
