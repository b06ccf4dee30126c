"""From a pipeline file to a run: `submit(build, Config)` gives it flags, a target, a manifest and a view.

Needs hera only through the workflow it is handed; neither torch, pyspark nor Java.
"""

import dataclasses
import inspect
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import tyro

from everstep import flags
from everstep.errors import BadInput
from runtime.store import StoreError, absolute, open_store

if TYPE_CHECKING:
    from hera.workflows import Workflow

C = TypeVar("C")


def parameters(config: Any) -> dict[str, str]:
    """Each field of a pipeline's config, and `store`, as parameters of its workflow: `arguments=parameters(config)`."""
    values = {entry.name.replace("_", "-"): str(getattr(config, entry.name)) for entry in dataclasses.fields(config)}
    return {**values, "store": "runs/store"}


def parameter(name: str) -> str:
    """The Argo variable of a pipeline's config field."""
    return f"{{{{workflow.parameters.{name.replace('_', '-')}}}}}"


@dataclass(frozen=True)
class Submission:
    """How and where to run; the same flags for every pipeline."""

    target: Literal["auto", "local", "argo"] = "auto"
    """local: on this machine. argo is not built yet. auto: local."""
    output: Annotated[Literal["", "yaml"], tyro.conf.arg(aliases=["-o"])] = ""
    """yaml: print the manifest that would run, and do nothing else."""
    name: str = ""
    """Name of the run; an unfinished run of that name goes on where it stopped. Empty: made up."""
    store: str = "runs/store"
    """Keeps data, checkpoints and journals; runs share it. A directory, or s3://bucket/prefix (MINIO_ENDPOINT...)."""
    runs: str = "runs"
    """Directory of the run folders."""


def submit(build: "Callable[[C], Workflow]", config_type: type[C]) -> NoReturn:
    """Parse the flags, build the workflow, run it here (or print it), exit: 0 done, 1 failed, 2 bad input."""
    prog = f"python {sys.argv[0]}"
    both = dataclasses.make_dataclass("Flags", [("pipeline", config_type), ("submission", Submission)], frozen=True)
    text = f"{inspect.getdoc(sys.modules['__main__']) or ''}\n\nExample: {prog} --name first"
    chosen: Any = flags.parse(both, prog, text)
    try:
        code = _submit(build, chosen.pipeline, chosen.submission)
    except BadInput as error:
        print(f"{prog}: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)


def _submit(build: "Callable[[C], Workflow]", config: C, how: Submission) -> int:
    if how.target == "argo":
        raise BadInput("--target argo: submission to Argo is not built yet; leave it out to run here")
    check = getattr(config, "check", None)
    if check is not None:
        check()
    manifest = manifest_of(build(config), absolute(how.store))
    if how.output == "yaml":
        import yaml

        sys.stdout.write(yaml.safe_dump(manifest, sort_keys=False, width=120))
        return 0
    _lint(manifest)
    return _run_here(manifest, how)


def _lint(manifest: dict[str, Any]) -> None:
    """Raise BadInput with all that `everstep workflow lint` calls an error."""
    from runtime.workflow.library import Library
    from runtime.workflow.lint import findings
    from runtime.workflow.reading import Document

    wrong = [one for one in findings(Document(manifest, ""), Library()) if one.error]
    if wrong:
        raise BadInput("\n  ".join(one.said for one in wrong))


def manifest_of(workflow: "Workflow", store: str) -> dict[str, Any]:
    """The manifest as a dict, its parameter `store` set to that URI."""
    manifest: dict[str, Any] = workflow.to_dict()
    for entry in manifest["spec"]["arguments"]["parameters"]:
        if entry["name"] == "store":
            entry["value"] = store
    return manifest


def _run_here(manifest: dict[str, Any], how: Submission) -> int:
    from runtime.platform.process import end_nodes
    from runtime.workflow import ManifestError, RunOptions, check_name, run
    from runtime.workflow.view import watch

    metadata = manifest["metadata"]
    name = how.name or metadata.get("name") or f"{metadata['generateName']}{secrets.token_hex(2)}"
    folder = Path(how.runs) / name
    try:
        check_name(name)
    except ManifestError as error:
        raise BadInput(f"--{error}") from None
    try:
        open_store(how.store)
    except StoreError as error:
        raise BadInput(str(error)) from None
    print(f"{name} · target local (no submission to Argo yet) · store {how.store}", file=sys.stderr)
    try:
        with watch() as show:
            result = run(manifest, RunOptions(name=name, runs=Path(how.runs), on_change=show))
    except ManifestError as error:
        raise BadInput(str(error)) from None
    end_nodes(folder)
    for name, value in result.outputs.items():
        print(f"{name}: {value}", file=sys.stderr)
    report = folder / "report.html"
    if report.exists():
        print(f"report: {report}", file=sys.stderr)
    if result.exit_code:
        print(f"to go on where it stopped: the same command with --name {name}", file=sys.stderr)
    return result.exit_code
