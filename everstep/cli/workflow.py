"""`everstep workflow run|lint|get|logs|list|...`: Argo manifests on this machine, with the verbs of `argo`."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from everstep.cli import cluster_runs, run_ends, run_requests, run_views
from everstep.cli.manifest_flags import (
    image_commands,
    load_workflow,
    parameter_values,
    parse_pairs,
    warn_unread_parameters,
)
from everstep.cli.workflow_flags import (
    Delete,
    Get,
    Lint,
    List,
    Logs,
    OneRun,
    Resubmit,
    Resume,
    Retry,
    Run,
    Set,
    Stop,
    Terminate,
    Wait,
    Watch,
)
from everstep.errors import BadInput, require_platform
from everstep.extras import require_for
from everstep.flags import add_verbs
from everstep.runtime.display.terminal import as_text
from everstep.runtime.display.times import UNITS
from everstep.runtime.exit_codes import ExitCode
from everstep.shell_settings import archive_limits, checked_variables, warn_missing_variables

if TYPE_CHECKING:
    from everstep.runtime.workflow.engine.engine import Engine
    from everstep.runtime.workflow.lint.lint import Finding
    from everstep.runtime.workflow.run.run_folder import RunInputs

STOPPED = 130


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verbs and their flags. Exit codes: 0 done, 1 failed, 2 bad input, 75 cannot write, 130 stopped."""
    parser.epilog = "example: everstep workflow run pipeline.yaml --name first -p nodes=2"
    add_verbs(parser, {
        "run": (Run, _run), "lint": (Lint, _lint), "get": (Get, _get), "logs": (Logs, _logs), "list": (List, _list),
        "resume": (Resume, _resume), "retry": (Retry, _retry), "stop": (Stop, _stop),
        "terminate": (Terminate, _terminate), "set": (Set, _set), "wait": (Wait, _wait), "watch": (Watch, _watch),
        "delete": (Delete, _delete), "resubmit": (Resubmit, _resubmit),
    })  # fmt: skip


def _run(flags: Run) -> int:
    require_platform()
    from everstep.runtime.workflow import ManifestError, parse
    from everstep.runtime.workflow.local_pods.sandbox import Sandbox
    from everstep.runtime.workflow.manifest.parse import with_arguments
    from everstep.runtime.workflow.run.run_folder import RunInputs, generated_name

    workflow_loaded = load_workflow(flags)
    values = parameter_values(flags)
    manifest = with_arguments(workflow_loaded.document.value, values, flags.entrypoint)
    try:
        parse(manifest, workflow_loaded.library)
    except ManifestError as error:
        first = error.problems[0]
        of = "" if first.of in workflow_loaded.others else first.of
        raise BadInput(f"{workflow_loaded.location(first)}: {first._replace(of=of).text}") from None
    warn_unread_parameters([workflow_loaded], values)
    metadata = manifest.get("metadata") or {}
    made_up = generated_name(str(metadata.get("generateName", "workflow-")))
    name = flags.name or metadata.get("name") or made_up
    folder = flags.runs.absolute()
    if flags.no_network and not flags.sandbox:
        raise BadInput("--no-network: needs --sandbox, too")
    sandbox = Sandbox(network=not flags.no_network) if flags.sandbox else None
    path = tuple(root.absolute() for root in flags.path)
    for root in path:
        if not root.is_dir():
            raise BadInput(f"--path {root}: not a folder")
    if flags.work_dir and not flags.work_dir.is_dir():
        raise BadInput(f"--work-dir {flags.work_dir}: not a folder")
    work_dir = flags.work_dir.absolute() if flags.work_dir else None
    inputs = RunInputs(workflow_loaded.library, path, checked_variables(flags.env), sandbox, work_dir)
    code = _execute(manifest, name, folder, inputs)
    _print_run(folder / name, flags.output)
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
    from everstep.ended_nodes import end_nodes_of
    from everstep.runtime.workflow import CannotWriteError, ManifestError, RunOptions, check_name, run_workflow
    from everstep.runtime.workflow.engine.events import CorruptLogError
    from everstep.runtime.workflow.run.control_requests import ControlRequestError
    from everstep.runtime.workflow.run.own_errors import workflow_message
    from everstep.runtime.workflow.run.view import watch

    if isinstance(manifest, dict) and not beside.path:  # Other programs may have other packages.
        require_for(manifest)
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
                beside.variables, archive_limits(), beside.work_dir,
            )  # fmt: skip
            result = run_workflow(manifest, options)
    except (ManifestError, ControlRequestError, CorruptLogError) as error:
        raise BadInput(str(error)) from None
    except CannotWriteError as error:
        print(f"everstep workflow: {error}", file=sys.stderr)
        return ExitCode.TRY_AGAIN
    if not beside.sandbox:  # In a sandbox the nodes ended with their pod, and a pod's word about nodes is not trusted.
        for line in end_nodes_of(result.folder, manifest):
            print(line, file=sys.stderr)
    message = workflow_message(run_views.read_workflow(result.folder)["status"])
    print(as_text(f"{result.phase.value}  {message}".rstrip()), file=sys.stderr)
    return result.exit_code if result.exit_code in (0, STOPPED) else 1


def _announce_name(name: str, show: "Callable[[Engine, Path], None]") -> "Callable[[Engine, Path], None]":
    """Wrap `show` so that it prints the run's name first; a run that is refused prints no name."""
    unsaid = [name]

    def show_with_name(engine: "Engine", folder: Path) -> None:
        if unsaid:
            print(unsaid.pop(), file=sys.stderr)
        show(engine, folder)

    return show_with_name


def _lint(flags: Lint) -> int:
    from everstep.runtime.workflow import ManifestError
    from everstep.runtime.workflow.lint.lint import as_json, as_sarif, findings
    from everstep.runtime.workflow.manifest.files import load_each
    from everstep.runtime.workflow.manifest.parse import with_arguments

    try:
        every = load_each(flags.file, flags.with_, image_commands(flags))
    except ManifestError as error:
        raise BadInput(str(error)) from None
    values = parameter_values(flags)
    warn_unread_parameters(every, values)
    documents = [replace(own.document, value=with_arguments(own.document.value, values)) if values else own.document
             for own in every]  # fmt: skip
    all_findings = [
        item
        for workflow, own in zip(every, documents, strict=True)
        for item in findings(own, workflow.library, workflow.others)
    ]
    all_findings = [
        finding
        for finding in dict.fromkeys(all_findings)
        if flags.target == "both" or finding.target in (None, flags.target)
    ]
    if flags.format == "text":
        for finding in all_findings:
            print(finding.text_with_place, file=sys.stderr)
        print(f"{', '.join(map(str, flags.file))}: {_lint_summary(all_findings, flags.target)}", file=sys.stderr)
    else:
        print(json.dumps(as_json(all_findings) if flags.format == "json" else as_sarif(all_findings), indent=2))
    return 2 if any(finding.error for finding in all_findings) else 0


def _lint_summary(findings: "Sequence[Finding]", target: str) -> str:
    levels = Counter(finding.level for finding in findings)
    places = {"local": "cannot run here", "argo": "cannot run on a cluster"}
    levels_shown = [level for place, level in places.items() if target in ("both", place) and levels[level]]
    return ", ".join([f"{levels['wrong']} errors", *(f"{levels[level]} {level}" for level in levels_shown),
                      f"{levels['warning']} warnings"])  # fmt: skip


def _get(flags: Get) -> int:
    if flags.namespace:
        workflow = cluster_runs.get(flags.namespace, flags.name)
    else:
        workflow = run_views.read_workflow(run_views.run_folder(flags.runs, flags.name))
    if flags.output:
        _dump(workflow, flags.output)
    else:
        print(run_views.run_view(workflow, time.time()))
    return 0


def _list(flags: List) -> int:
    workflows = cluster_runs.workflows(flags.namespace) if flags.namespace else run_views.workflows(flags.runs)
    print(run_views.list_view(workflows, time.time()))
    return 0


def _logs(flags: Logs) -> int:
    if flags.namespace:
        return cluster_runs.logs(flags.namespace, flags.name, flags.pod, flags.follow)
    for line in run_views.log_lines(run_views.run_folder(flags.runs, flags.name), flags.pod, flags.follow):
        print(line, flush=True)
    return 0


def _wait(flags: Wait) -> int:
    if flags.namespace:
        return cluster_runs.wait(flags.namespace, flags.name)
    return run_ends.wait(flags.runs, flags.name)


def _watch(flags: Watch) -> int:
    if flags.namespace:
        return run_ends.show(cluster_runs.states(flags.namespace, flags.name))
    return run_ends.watch(flags.runs, flags.name)


def _delete(flags: Delete) -> int:
    if not (flags.name or flags.completed or flags.older):
        raise BadInput("name the runs to delete, or give --completed or --older DURATION")
    return run_ends.delete(flags.runs, flags.name, flags.completed, _seconds("--older", flags.older), flags.dry_run)


def _seconds(flag: str, text: str) -> float:
    """The length of `90s`, `10m`, `3h` or `1d`; 0 for an empty text. Raises BadInput."""
    number, unit = text[:-1], {letter: length for letter, _, length in UNITS}.get(text[-1:])
    if text and (unit is None or not number.isdecimal()):
        raise BadInput(f"{flag} {text}: write a number and s, m, h or d, such as 3h")
    return float(number) * unit if unit else 0.0


def _resubmit(flags: Resubmit) -> int:
    from everstep.runtime.workflow.manifest.parse import with_arguments
    from everstep.runtime.workflow.run.run_folder import generated_name, read_inputs

    folder = run_views.run_folder(flags.runs, flags.name)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest = with_arguments(manifest, parse_pairs(flags.parameter, "-p"), "")
    metadata = manifest.get("metadata") or {}
    base = metadata.get("generateName") or f"{metadata.get('name') or folder.name}-"
    inputs_before = read_inputs(folder)
    warn_missing_variables(folder.name, inputs_before.variables)
    return _execute(manifest, generated_name(base), flags.runs.absolute(), inputs_before)


def _resume(flags: Resume) -> int:
    from everstep.runtime.workflow.run.control_requests import ControlRequest
    from everstep.runtime.workflow.run.run_folder import launcher_pid

    if launcher_pid(run_views.run_folder(flags.runs, flags.name)) is not None:
        return run_requests.send(flags.runs, flags.name, "resume", ControlRequest("resume", flags.node_field_selector))
    return _take_over(flags)


def _retry(flags: Retry) -> int:
    if flags.namespace:
        _refuse_there(flags, plain=not (flags.node_field_selector or flags.restart_successful or flags.parameter))
        return cluster_runs.retry(flags.namespace, flags.name)
    if bool(flags.node_field_selector) != flags.restart_successful:
        raise BadInput(
            "--restart-successful and --node-field-selector go together: they choose the successful steps to run again"
        )
    status = run_views.read_workflow(run_views.run_folder(flags.runs, flags.name))["status"]
    if status["phase"] == "Succeeded" and not flags.restart_successful:
        mend = "--restart-successful --node-field-selector displayName=STEP runs a step again"
        raise BadInput(f"{flags.name}: has already succeeded; {mend}")
    return _take_over(flags, flags.node_field_selector, parse_pairs(flags.parameter, "-p"))


def _take_over(flags: OneRun, restart: str = "", parameters: "Mapping[str, str] | None" = None) -> int:
    require_platform()
    from everstep.runtime.workflow.run.run_folder import read_inputs

    folder = run_views.run_folder(flags.runs, flags.name)
    manifest = json.loads((folder / "manifest.json").read_text())
    inputs_before = read_inputs(folder)
    warn_missing_variables(folder.name, inputs_before.variables)
    return _execute(manifest, folder.name, flags.runs, inputs_before, restart, parameters)


def _stop(flags: Stop) -> int:
    from everstep.runtime.workflow.run.control_requests import ControlRequest

    if flags.namespace:
        _refuse_there(flags, plain=not (flags.node_field_selector or flags.message))
        return cluster_runs.end(flags.namespace, flags.name, "stop")
    if flags.node_field_selector:
        wish = ControlRequest("set", flags.node_field_selector, "Failed", flags.message)
        return run_requests.send(flags.runs, flags.name, "stop", wish)
    return _end(flags, "stop")


def _refuse_there(flags: Stop | Retry, plain: bool) -> None:
    if not plain:
        raise BadInput(f"{flags.name}: with --namespace, a verb acts on the whole run; `argo` has more flags")


def _terminate(flags: Terminate) -> int:
    if flags.namespace:
        return cluster_runs.end(flags.namespace, flags.name, "terminate")
    return _end(flags, "terminate")


def _end(flags: OneRun, verb: Literal["stop", "terminate"]) -> int:
    from everstep.runtime.workflow.run.control_requests import ControlRequest, submit_request
    from everstep.runtime.workflow.run.run_folder import launcher_pid

    folder = run_views.run_folder(flags.runs, flags.name)
    if launcher_pid(folder) is not None:
        return run_requests.send(flags.runs, flags.name, verb, ControlRequest(verb))
    status = run_views.read_workflow(folder)["status"]
    if status.get("finishedAt"):
        raise BadInput(f"{flags.name}: has already ended: {status['phase']}")
    # Its launcher was killed and its pods still run: the run is adopted in order to end it.
    submit_request(folder, ControlRequest(verb))
    _take_over(flags)
    return 0


def _set(flags: Set) -> int:
    from everstep.runtime.workflow.run.control_requests import ControlRequest

    values = parse_pairs(flags.output_parameter, "--output-parameter")
    wish = ControlRequest("set", flags.node_field_selector, flags.phase, flags.message, values)
    return run_requests.send(flags.runs, flags.name, "set", wish)
