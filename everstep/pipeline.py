"""From a pipeline file to a run: `submit(build, Config)` gives it flags, a target, a manifest and a view.

It uses hera only through the workflow it receives, and imports no torch, pyspark or Java.
"""

import dataclasses
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from everstep import flags
from everstep.errors import BadInput, permission_line, require_platform, why_not_writable
from everstep.extras import require_for
from everstep.options import Submission
from everstep.runtime.display.flaghelp import Flags
from everstep.runtime.display.terminal import as_text
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.store import StoreError, Unavailable, absolute_uri, open_store, require_writes
from everstep.shell_settings import archive_limits, checked_variables

if TYPE_CHECKING:
    from hera.workflows import Workflow

    from everstep.runtime.workflow.local_pods.sandbox import Sandbox

C = TypeVar("C")


def parameters(config: Any) -> dict[str, str]:
    """Each field of a pipeline's config, and `store`, as workflow parameters: `arguments=parameters(config)`.

    Those that differ from their defaults come first, as Argo's UI lists them in this order.
    """
    fields = sorted(dataclasses.fields(config), key=lambda entry: getattr(config, entry.name) == entry.default)
    return {
        **{entry.name.replace("_", "-"): str(getattr(config, entry.name)) for entry in fields},
        "store": "runs/store",
    }


def parameter(name: str) -> str:
    """The Argo variable that refers to a field of the pipeline's config: `{{workflow.parameters.NAME}}`."""
    return f"{{{{workflow.parameters.{name.replace('_', '-')}}}}}"


def check_step(config: Any, **flags_of: str) -> None:
    """Raise BadInput if a step's config is wrong in a way that shows before anything starts, StoreError if a store
    does not answer.

    `flags_of` maps a field of the step to the pipeline's field if that has another name; the message then names the
    flag that was typed: `check_step(corpus.Config(source=self.corpus), source="corpus")`.
    """
    try:
        config.check()
    except (BadInput, StoreError) as error:
        message = str(error)
        for theirs, own in flags_of.items():
            message = re.sub(rf"--{theirs.replace('_', '-')}(?![\w-])", f"--{own.replace('_', '-')}", message)
        # A step's own error has an exit code.
        passes = isinstance(error, Unavailable) or getattr(error, "code", None) == ExitCode.TRY_AGAIN
        raise (Unavailable if passes else BadInput)(message) from None


ANNOTATION = "workflows.argoproj.io"
"""Prefix of the annotations that Argo's UI shows: title and description."""


def submit(build: "Callable[[C], Workflow]", config_type: type[C]) -> NoReturn:
    """Parse the flags, build the workflow, run or print it, and exit: 0 done, 1 failed, 2 bad input, 75 try again,
    130 interrupted.

    The config may have methods that raise BadInput: `check` for input that no step could use, and `check_machine` for
    what this machine is too small for, which is called before a local run. Raises SystemExit alone: an error of the
    user is one line on stderr.
    """
    prog = f"python {sys.argv[0]}"
    config, how = _read_flags(prog, config_type)
    try:
        code = _submit(build, config, how)
    except BadInput as error:
        print(f"{prog}: {error}", file=sys.stderr)
        code = ExitCode.BAD_INPUT
    except PermissionError as error:
        print(f"{prog}: {permission_line(error)}", file=sys.stderr)
        code = ExitCode.BAD_INPUT
    except Unavailable as error:
        print(f"{prog}: {error}", file=sys.stderr)
        code = ExitCode.TRY_AGAIN
    except KeyboardInterrupt:
        print(f"{prog}: interrupted before it was known whether the run was submitted", file=sys.stderr)
        code = 130
    sys.exit(code)


def _read_flags(prog: str, config_type: type[C]) -> tuple[C, Submission]:
    """Parse the pipeline's own flags and those of every pipeline. A wrong one ends the process with exit code 2."""
    text = inspect.getdoc(sys.modules["__main__"]) or ""
    parser = Flags(prog=prog, description=text, epilog=f"example:\n  {prog} --name first", allow_abbrev=False)
    own, common = parser.add_argument_group("of this pipeline"), parser.add_argument_group("where and how it runs")
    flags.add_flags(common, Submission)
    try:
        flags.add_flags(own, config_type)
    except ValueError as error:
        parser.error(str(error))
    values = parser.parse_args(flags.with_dashes(parser, sys.argv[1:]))
    return flags.read_flags(config_type, values), flags.read_flags(Submission, values)


def _submit(build: "Callable[[C], Workflow]", config: C, how: Submission) -> int:
    from everstep.runtime.submission.target import TargetError, choose

    _call_if_defined(config, "check")
    try:
        target = choose(how.target, os.environ, how.namespace)
    except TargetError as error:
        raise BadInput(str(error)) from None
    how.check(target.name, target.reason)
    manifest = manifest_of(build(config), absolute_uri(how.store))
    if not how.output:
        _lint(manifest)
    metadata = manifest["metadata"]
    fixed_name = how.name or metadata.get("name")

    from everstep.runtime.workflow.run.run_folder import generated_name

    def another() -> str:
        return generated_name(metadata["generateName"])

    name = fixed_name or another()
    if target.route is None and how.output:
        return _print(manifest)
    if target.route is None:
        _call_if_defined(config, "check_machine")
        return _run_locally(manifest, name, how, target.reason)
    from everstep.cluster import manifest_for_cluster, refuse_unready, run_on_cluster
    from everstep.local_files import with_addresses

    cluster_manifest = manifest_for_cluster(manifest, name, target.route.namespace, how)
    if not how.output:
        refuse_unready(target.route, cluster_manifest)
    if (cluster_config := with_addresses(config, how.store, how.code)) is not config:
        manifest = manifest_of(build(cluster_config), absolute_uri(how.store))
        cluster_manifest = manifest_for_cluster(manifest, name, target.route.namespace, how)
    if how.output:
        return _print(cluster_manifest)
    return run_on_cluster(cluster_manifest, target.route, target.reason, how, None if fixed_name else another)


def _call_if_defined(config: Any, name: str) -> None:
    """One of the checks of a pipeline's config, which may lack it; raises BadInput."""
    method = getattr(config, name, None)
    if method is not None:
        method()


def _print(manifest: dict[str, Any]) -> int:
    import yaml

    sys.stdout.write(yaml.safe_dump(manifest, sort_keys=False, width=120))
    return 0


def _lint(manifest: dict[str, Any]) -> None:
    """Raise BadInput with all errors that `everstep workflow lint` would print."""
    from everstep.runtime.workflow.lint.lint import findings
    from everstep.runtime.workflow.manifest.library import Library
    from everstep.runtime.workflow.manifest.yaml_source import Document

    wrong = [finding for finding in findings(Document(manifest, ""), Library()) if finding.error]
    if wrong:
        raise BadInput("\n  ".join(finding.text for finding in wrong))


def _first_line() -> str:
    """The first line of the pipeline file's docstring."""
    return (inspect.getdoc(sys.modules["__main__"]) or "").partition("\n")[0]


def manifest_of(workflow: "Workflow", store: str) -> dict[str, Any]:
    """The manifest as a dict, with its parameter `store` set to that URI.

    Argo's UI shows the pipeline's name and the first line of its file, unless the workflow has annotations of its own.
    """
    manifest: dict[str, Any] = workflow.to_dict()
    metadata = manifest["metadata"]
    title = (
        (metadata.get("name") or metadata.get("generateName") or "pipeline").strip("-").replace("-", " ").capitalize()
    )
    annotations = {f"{ANNOTATION}/title": title, f"{ANNOTATION}/description": _first_line()}
    metadata["annotations"] = {
        **{key: text for key, text in annotations.items() if text},
        **metadata.get("annotations", {}),
    }
    for entry in (manifest["spec"].get("arguments") or {}).get("parameters") or ():
        if entry["name"] == "store":
            entry["value"] = store
    return manifest


def _sandbox(how: Submission) -> "Sandbox | None":
    from everstep.runtime.workflow.local_pods.sandbox import Sandbox

    if not how.sandbox:
        return None
    store = absolute_uri(how.store)
    writable = () if "://" in store and not store.startswith("file://") else (store.removeprefix("file://"),)
    return Sandbox(not how.no_network, writable)


def _named_outputs(outputs: Mapping[str, str]) -> dict[str, str]:
    """The outputs that are not empty; instead of `results`, each value that a script named."""
    try:
        results = json.loads(outputs.get("results") or "{}")
    except ValueError:
        results = None
    if not isinstance(results, dict):
        return {name: value for name, value in outputs.items() if value}
    own = {name: value for name, value in outputs.items() if value and name != "results"}
    return {**{name: str(value) for name, value in results.items()}, **own}


def _run_locally(manifest: dict[str, Any], name: str, how: Submission, reason: str) -> int:
    from everstep.ended_nodes import end_nodes_of
    from everstep.runtime.workflow import CannotWriteError, ManifestError, RunOptions, check_name, run_workflow
    from everstep.runtime.workflow.run.view import watch

    require_platform()
    require_for(manifest)
    folder, variables, limits = Path(how.runs) / name, checked_variables(how.env), archive_limits()
    try:
        check_name(name)
    except ManifestError as error:
        raise BadInput(f"--{error}") from None
    if why := why_not_writable(folder):
        raise BadInput(f"--runs {how.runs}: {why}; choose another folder")
    try:
        require_writes(open_store(how.store))
    except StoreError as error:
        error_type = Unavailable if isinstance(error, Unavailable) else BadInput
        raise error_type(f"--store {how.store}: {error}") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--runs {how.runs}: {error.filename}: {error.strerror}; choose another folder") from None
    print(f"{name} · target local ({reason}) · store {how.store}", file=sys.stderr)
    sandbox = _sandbox(how)
    try:
        with watch() as show:
            options = RunOptions(
                name, Path(how.runs), on_change=show, sandbox=sandbox, variables=variables, limits=limits,
                work_dir=Path(how.work_dir) if how.work_dir else None,
            )  # fmt: skip
            result = run_workflow(manifest, options)
    except ManifestError as error:
        raise BadInput(str(error)) from None
    except CannotWriteError as error:
        print(f"python {sys.argv[0]}: {error}", file=sys.stderr)
        return ExitCode.TRY_AGAIN
    if sandbox is None:  # In a sandbox the nodes ended with their pod, and a pod's word about nodes is not trusted.
        for line in end_nodes_of(folder, manifest):
            print(line, file=sys.stderr)
    for name, value in _named_outputs(result.outputs).items():
        print(f"{name}: {as_text(value)}", file=sys.stderr)
    report = folder / "report.html"
    if report.exists():
        print(f"report: {report}", file=sys.stderr)
    if result.exit_code:
        print(f"to continue where it stopped: the same command with --name {name}", file=sys.stderr)
    return result.exit_code
