"""`everstep workflow run|lint|get|logs|list|resume|retry|stop|terminate|set`: Argo manifests on this machine."""

import argparse
import json
import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.cli import run_views
from everstep.errors import BadInput
from everstep.runtime.display.terminal import as_text
from everstep.runtime.exit_codes import ExitCode
from everstep.shell_settings import archive_limits, checked_variables, warn_missing_variables

if TYPE_CHECKING:
    from everstep.runtime.workflow.engine.engine import Engine
    from everstep.runtime.workflow.manifest.files import LoadedWorkflow
    from everstep.runtime.workflow.run.control_requests import ControlRequest
    from everstep.runtime.workflow.run.run_folder import RunInputs

STOPPED = 130
POSITIONAL = {
    "file+": "YAML, or a pipeline's .py; further files may hold objects that it refers to",
    "name": "name of the run",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verbs and their flags."""
    parser.epilog = "example: everstep workflow run pipeline.yaml -n first -p nodes=2"
    verbs = parser.add_subparsers(dest="what", metavar="VERB", required=True)

    def verb(name: str, text: str, *positional: str) -> argparse.ArgumentParser:
        below = verbs.add_parser(name, help=text, description=text)
        for one in positional:
            below.add_argument(one.rstrip("+"), nargs="+" if one.endswith("+") else None, help=POSITIONAL[one])
        below.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="directory of run folders")
        return below

    ran = verb("run", "run a workflow here, to its end", "file+")
    ran.add_argument("-n", "--name", default="", help="name of the run; empty: the workflow's name, or a generated one")
    ran.add_argument("-p", "--parameter", action="append", default=[], metavar="NAME=VALUE", help="a parameter's value")
    ran.add_argument("--parameter-file", type=Path, metavar="FILE", help="YAML or JSON map of parameters")
    ran.add_argument("--entrypoint", default="", metavar="TEMPLATE", help="entrypoint instead of the manifest's")
    ran.add_argument(
        "-o", "--output", choices=["json", "yaml", "name"], default="", help="print the run when it has ended"
    )
    ran.add_argument("--path", type=Path, action="append", default=[], metavar="DIR",
                     help="programs that images would bring, added to every pod's PATH")  # fmt: skip
    ran.add_argument("--env", action="append", default=[], metavar="NAME",
                     help="a variable of this shell to pass to pods; NAME* matches several")  # fmt: skip
    ran.add_argument("--sandbox", action="store_true", help="isolate pods: they see no home directory and no other "
                     "process, write only to their own folders, and have no privileges")  # fmt: skip
    ran.add_argument("--no-network", action="store_true", help="with --sandbox: pods have no network either")
    ran.add_argument(
        "--work-dir", type=Path, default=None, metavar="DIR", help="the pods' working directory; empty: this one"
    )
    checked = verb("lint", "report what is wrong with a workflow before it runs", "file+")
    checked.add_argument("--format", choices=["text", "json", "sarif"], default="text", help="for people, or programs")
    for below in (ran, checked):
        below.add_argument("--with", dest="with_", type=Path, action="append", default=[], metavar="DIR",
                           help="WorkflowTemplates, ConfigMaps and Secrets that it refers to")  # fmt: skip
        below.add_argument("--image", action="append", default=[], metavar="NAME=COMMAND",
                           help="the command of an image, for containers without one")  # fmt: skip
    get = verb("get", "show what a run's steps do, or did", "name")
    get.add_argument("-o", "--output", choices=["json", "yaml"], default="", help="the whole Workflow with its status")
    logs = verb("logs", "show what a run's pods have printed", "name")
    logs.add_argument("pod", nargs="?", default="", help="only this pod, or steps whose name begins with it")
    logs.add_argument("-f", "--follow", action="store_true", help="follow until the run has ended")
    verb("list", "list the runs, newest last")
    _add_selector(verb("resume", "let suspended steps continue, or continue a run that lost its launcher", "name"))
    again = _add_selector(
        verb("retry", "continue a run that failed or was stopped: steps that did not succeed run again", "name")
    )
    again.add_argument("--restart-successful", action="store_true",
                                   help="also rerun steps of --node-field-selector, and those after them")  # fmt: skip
    again.add_argument(
        "-p", "--parameter", action="append", default=[], metavar="NAME=VALUE", help="change a parameter"
    )
    stopped = _add_selector(verb("stop", "stop a run with all its processes; its exit handler still runs", "name"))
    stopped.add_argument(
        "--message", default="", help="message of the suspended steps that --node-field-selector fails"
    )
    verb("terminate", "stop a run at once, without its exit handler", "name")
    set_ = _add_selector(verb("set", "set a suspended step's outputs, or end it", "name"))
    set_.add_argument("--phase", choices=["Succeeded", "Failed", "Error"], default="")
    set_.add_argument("--message", default="")
    set_.add_argument("--output-parameter", action="append", default=[], metavar="NAME=VALUE")


def _add_selector(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--node-field-selector", default="", metavar="FIELD=VALUE,...", help="only steps that match")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the verb; returns the exit code: 0 done, 1 failed, 2 bad input, 75 cannot write, 130 stopped."""
    verbs = {
        "run": _run, "lint": _lint, "get": _get, "logs": _logs, "list": _list, "resume": _resume, "retry": _retry,
        "stop": _stop, "terminate": _stop, "set": _set,
    }  # fmt: skip
    try:
        return verbs[arguments.what](arguments)
    except BadInput as error:
        print(f"everstep workflow {arguments.what}: {error}", file=sys.stderr)
        return 2


def _load(arguments: argparse.Namespace, templates: bool = False) -> "LoadedWorkflow":
    from everstep.runtime.workflow import ManifestError
    from everstep.runtime.workflow.manifest.files import load

    try:
        images = {
            name: _split_command(name, command) for name, command in _parse_pairs(arguments.image, "--image").items()
        }
        return load([Path(file) for file in arguments.file], arguments.with_, images, templates)
    except ManifestError as error:
        raise BadInput(str(error)) from None


def _split_command(image: str, command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise BadInput(f"--image {image}={command}: {error}") from None


def _parse_pairs(texts: list[str], flag: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if not name or not equals:
            raise BadInput(f"{flag} {name or value!r}: write NAME=VALUE")
    for name, _, value in pairs:
        if not f"{name}{value}".isascii() and any("\ud800" <= one <= "\udfff" for one in f"{name}{value}"):
            raise BadInput(f"{flag} {name!r}: not UTF-8 text")
    return {name: value for name, _, value in pairs}


def _parameters(arguments: argparse.Namespace) -> dict[str, str]:
    from everstep.runtime.workflow.expressions.values import go_json
    from everstep.runtime.workflow.manifest.yaml_source import ReadError, read

    values: dict[str, str] = {}
    if arguments.parameter_file:
        try:
            values_of_file = read(arguments.parameter_file)
        except ReadError as error:
            raise BadInput(str(error)) from None
        if len(values_of_file) != 1 or not isinstance(values_of_file[0].value, Mapping):
            raise BadInput(f"{arguments.parameter_file}: not a map of parameters")
        entries = values_of_file[0].value.items()
        values = {str(name): value if isinstance(value, str) else go_json(value) for name, value in entries}
    return {**values, **_parse_pairs(arguments.parameter, "-p")}


def _run(arguments: argparse.Namespace) -> int:
    from everstep.runtime.workflow import ManifestError, parse
    from everstep.runtime.workflow.manifest.parse import with_arguments
    from everstep.runtime.workflow.pods.sandbox import Sandbox
    from everstep.runtime.workflow.run.run_folder import RunInputs

    loaded = _load(arguments)
    manifest = with_arguments(loaded.document.value, _parameters(arguments), arguments.entrypoint)
    try:
        parse(manifest, loaded.library)
    except ManifestError as error:
        first = error.problems[0]
        of = "" if first.of in loaded.others else first.of
        raise BadInput(f"{loaded.location(first)}: {first._replace(of=of).text}") from None
    metadata = manifest.get("metadata") or {}
    made_up = f"{metadata.get('generateName', 'workflow-')}{secrets.token_hex(2)}"
    name = arguments.name or metadata.get("name") or made_up
    folder = arguments.runs.absolute()
    if arguments.no_network and not arguments.sandbox:
        raise BadInput("--no-network: needs --sandbox, too")
    sandbox = Sandbox(network=not arguments.no_network) if arguments.sandbox else None
    path = tuple(one.absolute() for one in arguments.path)
    for one in path:
        if not one.is_dir():
            raise BadInput(f"--path {one}: not a folder")
    if arguments.work_dir:
        try:
            os.chdir(arguments.work_dir)
        except OSError as error:
            raise BadInput(f"--work-dir {arguments.work_dir}: {error.strerror}") from None
    inputs = RunInputs(loaded.library, path, checked_variables(arguments.env), sandbox)
    code = _execute(manifest, name, folder, inputs)
    _print_run(folder / name, arguments.output)
    return code


def _print_run(folder: Path, output: str) -> None:
    if output == "name":
        print(folder.name)
    elif output:
        _dump(run_views.read_workflow(folder), output)


def _dump(value: Any, output: str) -> None:
    if output == "json":
        print(json.dumps(value, indent=2))
    else:
        import yaml

        print(yaml.safe_dump(value, sort_keys=False), end="")


def _execute(
    manifest: Any, name: str, folder: Path, beside: "RunInputs", restart: str = "",
    parameters: Mapping[str, str] | None = None,
) -> int:  # fmt: skip
    from everstep.runtime.platform.process import end_nodes
    from everstep.runtime.workflow import CannotWriteError, ManifestError, RunOptions, check_name, run_workflow
    from everstep.runtime.workflow.engine.events import CorruptLogError
    from everstep.runtime.workflow.run.control_requests import ControlRequestError
    from everstep.runtime.workflow.run.view import watch

    try:
        check_name(name)
        try:
            (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"--runs {error.filename}: {error.strerror}; choose another folder") from None
        with watch() as show:
            show_named = _announce_name(name, show)
            options = RunOptions(
                name, folder, beside.library, beside.path, show_named, restart, beside.sandbox, parameters or {},
                beside.variables, archive_limits(),
            )  # fmt: skip
            result = run_workflow(manifest, options)
    except (ManifestError, ControlRequestError, CorruptLogError) as error:
        raise BadInput(str(error)) from None
    except CannotWriteError as error:
        print(f"everstep workflow: {error}", file=sys.stderr)
        return ExitCode.TRY_AGAIN
    if not beside.sandbox:  # In a sandbox the nodes ended with their pod, and a pod's word about nodes is not trusted.
        end_nodes(result.folder)
    print(as_text(f"{result.phase.value}  {result.message}".rstrip()), file=sys.stderr)
    return result.exit_code if result.exit_code in (0, STOPPED) else 1


def _announce_name(name: str, show: "Callable[[Engine, Path], None]") -> "Callable[[Engine, Path], None]":
    """Wrap `show` so that it prints the run's name first; a run that is refused prints no name."""
    unsaid = [name]

    def show_with_name(engine: "Engine", folder: Path) -> None:
        if unsaid:
            print(unsaid.pop(), file=sys.stderr)
        show(engine, folder)

    return show_with_name


def _lint(arguments: argparse.Namespace) -> int:
    from everstep.runtime.workflow.lint.findings import as_json, as_sarif, findings

    loaded = _load(arguments, templates=True)
    problems = findings(loaded.document, loaded.library, loaded.others)
    if arguments.format == "text":
        for one in problems:
            print(one.text_with_place, file=sys.stderr)
        warnings = sum(not one.error for one in problems)
        print(f"{loaded.document.file}: {len(problems) - warnings} errors, {warnings} warnings", file=sys.stderr)
    else:
        output = as_json(problems) if arguments.format == "json" else as_sarif(problems)
        print(json.dumps(output, indent=2))
    return 2 if any(one.error for one in problems) else 0


def _get(arguments: argparse.Namespace) -> int:
    workflow = run_views.read_workflow(run_views.run_folder(arguments.runs, arguments.name))
    if arguments.output:
        _dump(workflow, arguments.output)
    else:
        print(run_views.run_view(workflow, time.time()))
    return 0


def _list(arguments: argparse.Namespace) -> int:
    print(run_views.list_view(arguments.runs, time.time()))
    return 0


def _logs(arguments: argparse.Namespace) -> int:
    for line in run_views.log_lines(
        run_views.run_folder(arguments.runs, arguments.name), arguments.pod, arguments.follow
    ):
        print(line, flush=True)
    return 0


def _send_request(arguments: argparse.Namespace, wish: "ControlRequest") -> int:
    from everstep.runtime.workflow.run.control_requests import ControlRequestError, submit_request, take_refusal
    from everstep.runtime.workflow.run.run_folder import launcher_pid

    folder = run_views.run_folder(arguments.runs, arguments.name)
    holder = launcher_pid(folder)
    if holder is None:
        raise BadInput(f"{arguments.name}: no process runs it; `everstep workflow resume {arguments.name}` resumes it")
    try:
        request = submit_request(folder, wish)
    except ControlRequestError as error:
        raise BadInput(str(error)) from None
    while request.exists():
        if launcher_pid(folder) is None and _withdraw(folder, request):
            raise BadInput(f"{arguments.name}: process {holder} has already ended")
        time.sleep(0.05)
    if why := take_refusal(request):
        raise BadInput(f"{arguments.name}: {why}")
    print(f"{arguments.name}: asked process {holder} to {arguments.what}", file=sys.stderr)
    return 0


def _withdraw(folder: Path, request: Path) -> bool:
    """Remove the request, so that no later launcher follows it. False: a launcher has followed it, or will."""
    from everstep.runtime.workflow import ManifestError
    from everstep.runtime.workflow.run.run_folder import lock

    try:
        with lock(folder):
            request.unlink()
    except (ManifestError, FileNotFoundError):
        return False
    return True


def _resume(arguments: argparse.Namespace) -> int:
    from everstep.runtime.workflow.run.control_requests import ControlRequest
    from everstep.runtime.workflow.run.run_folder import launcher_pid

    if launcher_pid(run_views.run_folder(arguments.runs, arguments.name)) is not None:
        return _send_request(arguments, ControlRequest("resume", arguments.node_field_selector))
    return _take_over(arguments)


def _retry(arguments: argparse.Namespace) -> int:
    if bool(arguments.node_field_selector) != arguments.restart_successful:
        raise BadInput("--restart-successful and --node-field-selector go together: which steps run again all the same")
    status = run_views.read_workflow(run_views.run_folder(arguments.runs, arguments.name))["status"]
    if status["phase"] == "Succeeded" and not arguments.restart_successful:
        mend = "--restart-successful --node-field-selector displayName=STEP runs a step again"
        raise BadInput(f"{arguments.name}: has already succeeded; {mend}")
    return _take_over(arguments, arguments.node_field_selector, _parse_pairs(arguments.parameter, "-p"))


def _take_over(arguments: argparse.Namespace, restart: str = "", parameters: "Mapping[str, str] | None" = None) -> int:
    from everstep.runtime.workflow.run.run_folder import read_inputs

    folder = run_views.run_folder(arguments.runs, arguments.name)
    manifest = json.loads((folder / "manifest.json").read_text())
    stored = read_inputs(folder)
    warn_missing_variables(arguments.name, stored.variables)
    return _execute(manifest, arguments.name, arguments.runs, stored, restart, parameters)


def _stop(arguments: argparse.Namespace) -> int:
    from everstep.runtime.workflow.run.control_requests import ControlRequest, submit_request
    from everstep.runtime.workflow.run.run_folder import launcher_pid

    folder = run_views.run_folder(arguments.runs, arguments.name)
    if arguments.what == "stop" and arguments.node_field_selector:
        return _send_request(
            arguments, ControlRequest("set", arguments.node_field_selector, "Failed", arguments.message)
        )
    if launcher_pid(folder) is not None:
        return _send_request(arguments, ControlRequest(arguments.what))
    status = run_views.read_workflow(folder)["status"]
    if status.get("finishedAt"):
        raise BadInput(f"{arguments.name}: has already ended: {status['phase']}")
    # Its launcher was killed and its pods go on: the run is taken up to be ended.
    submit_request(folder, ControlRequest(arguments.what))
    _take_over(arguments)
    return 0


def _set(arguments: argparse.Namespace) -> int:
    from everstep.runtime.workflow.run.control_requests import ControlRequest

    values = _parse_pairs(arguments.output_parameter, "--output-parameter")
    return _send_request(
        arguments, ControlRequest("set", arguments.node_field_selector, arguments.phase, arguments.message, values)
    )
