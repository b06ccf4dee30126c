"""From a pipeline file to a run: `submit(build, Config)` gives it flags, a target, a manifest and a view.

Needs hera only through the workflow it is handed; neither torch, pyspark nor Java.
"""

import dataclasses
import inspect
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import tyro

from everstep import flags
from everstep.errors import TRY_AGAIN, BadInput
from everstep.runtime.store import StoreError, absolute, open_store
from everstep.runtime.terminal import as_text
from everstep.surroundings import checked_variables, limits_of_archives

if TYPE_CHECKING:
    from hera.workflows import Workflow

    from everstep.runtime.workflow.sandbox import Sandbox

C = TypeVar("C")


def parameters(config: Any) -> dict[str, str]:
    """Each field of a pipeline's config, and `store`, as parameters of its workflow: `arguments=parameters(config)`."""
    values = {entry.name.replace("_", "-"): str(getattr(config, entry.name)) for entry in dataclasses.fields(config)}
    return {**values, "store": "runs/store"}


def parameter(name: str) -> str:
    """The Argo variable of a pipeline's config field."""
    return f"{{{{workflow.parameters.{name.replace('_', '-')}}}}}"


ANNOTATION = "workflows.argoproj.io"
"""Of what Argo's UI shows: a title and a description."""
SWITCH = tyro.constructors.PrimitiveConstructorSpec(
    nargs=0,
    metavar="",
    instance_from_str=lambda _: True,
    is_instance=lambda value: isinstance(value, bool),
    str_from_instance=lambda _: [],
)
"""A flag without a value."""


@dataclass(frozen=True)
class Submission:
    """How and where to run; the same flags for every pipeline."""

    target: Literal["auto", "local", "argo"] = "auto"
    """local: on this machine. argo: on Argo Workflows, through the Argo Server of ARGO_SERVER (ARGO_TOKEN) or the
    current kube context. auto: argo if ARGO_SERVER is set or the context's cluster serves argoproj.io, else local."""
    output: Annotated[Literal["", "yaml"], tyro.conf.arg(aliases=["-o"])] = ""
    """yaml: print the manifest that would run, and do nothing else."""
    name: str = ""
    """Name of the run; an unfinished run of that name goes on where it stopped (Argo: is watched). Empty: made up."""
    store: str = "runs/store"
    """Keeps data, checkpoints and journals; runs share it. A directory, or s3://bucket/prefix (Argo needs that)."""
    runs: str = "runs"
    """Directory of the run folders."""
    env: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Local: a variable of this shell that pods get besides the usual ones (docs/local-runs.md); NAME* for more."""
    sandbox: Annotated[bool, SWITCH] = False
    """Local: shut the steps' processes in: they see no home and no other process, write only to folders of their own
    and the store, and have no privileges."""
    no_network: Annotated[bool, SWITCH] = False
    """With --sandbox: without a network, either."""
    watch: Annotated[bool, SWITCH] = False
    """Argo: show the run until it ends; so it is without --detach. Ctrl-C leaves it running."""
    detach: Annotated[bool, SWITCH] = False
    """Argo: submit, and do not wait."""
    logs: Annotated[bool, SWITCH] = False
    """Argo: every line of the steps' logs on stdout, instead of each step's newest."""
    namespace: Annotated[str, tyro.conf.arg(aliases=["-n"])] = ""
    """Argo: namespace; empty: ARGO_NAMESPACE, else the kube context's or the server's own."""
    service_account: str = ""
    """Argo: service account of the pods, and NAME-train of the train step's, NAME-spark of Spark's driver on k8s://.
    Empty: the namespace's default."""
    image: str = ""
    """Argo: image of the steps."""
    image_pull_secret: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Argo: Secret with the registry's credentials; may be given several times."""
    store_secret: str = "everstep-store"
    """Argo: Secret with the store's AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (AWS_REGION,
    AWS_SESSION_TOKEN); empty: the pods have these variables by other means."""

    def check(self, target: str, reason: str) -> None:
        """Raise BadInput for flags that would have no effect there, or contradict each other."""
        if self.watch and self.detach:
            raise BadInput("--watch and --detach: say one of them")
        if self.detach and self.logs:
            raise BadInput("--logs and --detach: who does not wait sees no logs")
        if self.no_network and not self.sandbox:
            raise BadInput("--no-network: goes with --sandbox")
        if target != "local" and self.sandbox:
            raise BadInput(
                f"--sandbox: only for the target local; pods of a cluster are shut in (target {target}, {reason})"
            )
        if target == "local":
            plain = Submission()
            names = ("watch", "detach", "logs", "namespace", "service_account", "image", "image_pull_secret",
                     "store_secret")  # fmt: skip
            given = [f"--{one.replace('_', '-')}" for one in names if getattr(self, one) != getattr(plain, one)]
            if given:
                raise BadInput(f"{', '.join(given)}: only for Argo, and the target is local ({reason})")
        elif self.env:
            raise BadInput(f"--env: only for local runs, and the target is argo ({reason}): templates name Secrets")
        elif not self.store.startswith("s3://"):
            raise BadInput(
                f"target argo ({reason}): pods on many nodes share no folder: give --store s3://bucket/prefix "
                "(or --target local)"
            )


def submit(build: "Callable[[C], Workflow]", config_type: type[C]) -> NoReturn:
    """Parse the flags, build the workflow, run it (or print it), exit: 0 done, 1 failed, 2 bad input, 130 left."""
    prog = f"python {sys.argv[0]}"
    both = dataclasses.make_dataclass("Flags", [("pipeline", config_type), ("submission", Submission)], frozen=True)
    text = f"{inspect.getdoc(sys.modules['__main__']) or ''}\n\nExample: {prog} --name first"
    chosen: Any = flags.parse(both, prog, text)
    try:
        code = _submit(build, chosen.pipeline, chosen.submission)
    except BadInput as error:
        print(f"{prog}: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print(f"{prog}: interrupted before it was known whether it runs", file=sys.stderr)
        code = 130
    sys.exit(code)


def _submit(build: "Callable[[C], Workflow]", config: C, how: Submission) -> int:
    from everstep.runtime.submission.target import TargetError, choose

    check = getattr(config, "check", None)
    if check is not None:
        check()
    try:
        target = choose(how.target, os.environ, how.namespace)
    except TargetError as error:
        raise BadInput(str(error)) from None
    how.check(target.name, target.reason)
    manifest = manifest_of(build(config), absolute(how.store))
    if not how.output:
        _lint(manifest)
    metadata = manifest["metadata"]
    given = how.name or metadata.get("name")

    def another() -> str:
        return f"{metadata['generateName']}{secrets.token_hex(2)}"

    name = given or another()
    if target.route is None:
        return _print(manifest) if how.output else _run_here(manifest, name, how, target.reason)
    from everstep.cluster import made_for, run_there

    made = made_for(manifest, name, target.route.namespace, how)
    if how.output:
        return _print(made)
    return run_there(made, target.route, target.reason, how, None if given else another)


def _print(manifest: dict[str, Any]) -> int:
    import yaml

    sys.stdout.write(yaml.safe_dump(manifest, sort_keys=False, width=120))
    return 0


def _lint(manifest: dict[str, Any]) -> None:
    """Raise BadInput with all that `everstep workflow lint` calls an error."""
    from everstep.runtime.workflow.library import Library
    from everstep.runtime.workflow.lint import findings
    from everstep.runtime.workflow.reading import Document

    wrong = [one for one in findings(Document(manifest, ""), Library()) if one.error]
    if wrong:
        raise BadInput("\n  ".join(one.said for one in wrong))


def _first_line() -> str:
    """What the pipeline's file says of itself."""
    return (inspect.getdoc(sys.modules["__main__"]) or "").partition("\n")[0]


def manifest_of(workflow: "Workflow", store: str) -> dict[str, Any]:
    """The manifest as a dict, its parameter `store` set to that URI.

    Argo's UI shows the pipeline's name and the first line of its file, unless the workflow says otherwise.
    """
    manifest: dict[str, Any] = workflow.to_dict()
    metadata = manifest["metadata"]
    title = (
        (metadata.get("name") or metadata.get("generateName") or "pipeline").strip("-").replace("-", " ").capitalize()
    )
    told = {f"{ANNOTATION}/title": title, f"{ANNOTATION}/description": _first_line()}
    metadata["annotations"] = {**{key: text for key, text in told.items() if text}, **metadata.get("annotations", {})}
    for entry in manifest["spec"]["arguments"]["parameters"]:
        if entry["name"] == "store":
            entry["value"] = store
    return manifest


def _sandbox(how: Submission) -> "Sandbox | None":
    from everstep.runtime.workflow.sandbox import Sandbox

    if not how.sandbox:
        return None
    store = absolute(how.store)
    writable = () if "://" in store and not store.startswith("file://") else (store.removeprefix("file://"),)
    return Sandbox(not how.no_network, writable)


def _run_here(manifest: dict[str, Any], name: str, how: Submission, reason: str) -> int:
    from everstep.runtime.platform.process import end_nodes
    from everstep.runtime.workflow import CannotWriteError, ManifestError, RunOptions, check_name, run
    from everstep.runtime.workflow.view import watch

    folder, variables, limits = Path(how.runs) / name, checked_variables(how.env), limits_of_archives()
    try:
        check_name(name)
    except ManifestError as error:
        raise BadInput(f"--{error}") from None
    try:
        open_store(how.store)
    except StoreError as error:
        raise BadInput(str(error)) from None
    print(f"{name} · target local ({reason}) · store {how.store}", file=sys.stderr)
    sandbox = _sandbox(how)
    try:
        with watch() as show:
            options = RunOptions(
                name, Path(how.runs), on_change=show, sandbox=sandbox, variables=variables, limits=limits
            )
            result = run(manifest, options)
    except ManifestError as error:
        raise BadInput(str(error)) from None
    except CannotWriteError as error:
        print(f"python {sys.argv[0]}: {error}", file=sys.stderr)
        return TRY_AGAIN
    if sandbox is None:  # Else they ended with their pod, and what is told of them is a pod's word.
        end_nodes(folder)
    for name, value in result.outputs.items():
        print(f"{name}: {as_text(value)}", file=sys.stderr)
    report = folder / "report.html"
    if report.exists():
        print(f"report: {report}", file=sys.stderr)
    if result.exit_code:
        print(f"to go on where it stopped: the same command with --name {name}", file=sys.stderr)
    return result.exit_code
