"""The flags of `everstep workflow`'s verbs; a class's docstring is the help of its verb."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from everstep.flags import Flag

_Folder = Annotated[Path, Flag(metavar="DIR")]
_Folders = Annotated[tuple[Path, ...], Flag(metavar="DIR")]
_Namespace = Annotated[str, Flag("-n")]
_Values = Annotated[tuple[str, ...], Flag(metavar="NAME=VALUE")]
_Parameters = Annotated[tuple[str, ...], Flag("-p", metavar="NAME=VALUE")]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Where runs are."""

    runs: _Folder = Path("runs")
    """Directory of the run folders."""


@dataclass(frozen=True, kw_only=True)
class List(Runs):
    """List the runs, newest last."""

    namespace: _Namespace = ""
    """Namespace of a cluster (ARGO_SERVER, else the kube context) instead of this machine."""


@dataclass(frozen=True, kw_only=True)
class Manifest(Runs):
    """What is read of a manifest."""

    file: Annotated[tuple[Path, ...], Flag(is_positional=True)]
    """YAML, or a pipeline's .py; further files may hold objects that it refers to."""
    with_: _Folders = ()
    """WorkflowTemplates, ConfigMaps and Secrets that it refers to."""
    image: Annotated[tuple[str, ...], Flag(metavar="NAME=COMMAND")] = ()
    """The command of an image, for containers without one."""
    parameter: _Parameters = ()
    """A parameter's value."""
    parameter_file: Annotated[Path | None, Flag(metavar="FILE")] = None
    """YAML or JSON map of parameters."""


@dataclass(frozen=True, kw_only=True)
class Run(Manifest):
    """Run a workflow here, to its end."""

    name: str = ""
    """Name of the run; empty: the workflow's name, or a generated one."""
    entrypoint: Annotated[str, Flag(metavar="TEMPLATE")] = ""
    """Entrypoint instead of the manifest's."""
    output: Annotated[Literal["", "json", "yaml", "name"], Flag("-o")] = ""
    """Print the run when it has ended."""
    path: _Folders = ()
    """Folders of programs that images would provide, added to every pod's PATH."""
    env: Annotated[tuple[str, ...], Flag(metavar="NAME")] = ()
    """A variable of this shell to pass to pods; NAME* matches several."""
    sandbox: bool = False
    """Isolate pods: they see no home directory and no other process, write only to their own folders, and have no
    privileges."""
    no_network: bool = False
    """With --sandbox: pods have no network either."""
    work_dir: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Where containers without a workingDir begin; empty: at /, as in most images."""


@dataclass(frozen=True, kw_only=True)
class Lint(Manifest):
    """Report what is wrong with a workflow before it runs."""

    target: Literal["both", "argo", "local"] = "both"
    """Where it is to run. argo: on a cluster; local: on this machine."""
    format: Literal["text", "json", "sarif"] = "text"
    """text for people, json or sarif for programs."""


@dataclass(frozen=True, kw_only=True)
class OneRun(Runs):
    """A run by its name."""

    name: Annotated[str, Flag(metavar="RUN", is_positional=True)]
    """Name of the run; @latest: the newest one."""


@dataclass(frozen=True, kw_only=True)
class OneRunAnywhere(OneRun):
    """A run by its name, here or on a cluster."""

    namespace: _Namespace = ""
    """Namespace of the run, if it is on a cluster (ARGO_SERVER, else the kube context)."""


@dataclass(frozen=True, kw_only=True)
class Get(OneRunAnywhere):
    """Show what a run's steps do, or did."""

    output: Annotated[Literal["", "json", "yaml"], Flag("-o")] = ""
    """Print the whole Workflow with its status."""


@dataclass(frozen=True, kw_only=True)
class Logs(OneRunAnywhere):
    """Show what a run's steps, and the nodes of its trainings, have printed."""

    pod: Annotated[str, Flag(is_positional=True)] = ""
    """Only this pod, or steps and nodes whose name begins with it."""
    follow: Annotated[bool, Flag("-f")] = False
    """Follow until the run has ended."""


@dataclass(frozen=True, kw_only=True)
class Wait(Runs):
    """Wait until runs have ended; exit code 1 if one did not succeed."""

    name: Annotated[tuple[str, ...], Flag(metavar="RUN", is_positional=True)]
    """Names of runs; @latest: the newest one."""
    namespace: _Namespace = ""
    """Namespace of the runs, if they are on a cluster (ARGO_SERVER, else the kube context)."""


@dataclass(frozen=True, kw_only=True)
class Watch(OneRunAnywhere):
    """Show a run's steps until it has ended; exit code 1 if it did not succeed."""


@dataclass(frozen=True, kw_only=True)
class Delete(Runs):
    """Delete runs that have ended: their folders with logs and reports. What is in the store stays."""

    name: Annotated[tuple[str, ...], Flag(metavar="RUN", is_positional=True)] = ()
    """Names of runs; @latest: the newest one."""
    completed: bool = False
    """All runs that have ended."""
    older: Annotated[str, Flag(metavar="DURATION")] = ""
    """All runs that ended at least this long ago, such as 10m, 3h or 1d."""
    dry_run: bool = False
    """Only print which runs these are."""


@dataclass(frozen=True, kw_only=True)
class Resubmit(OneRun):
    """Run a run's workflow again from its beginning, as a new run."""

    parameter: _Parameters = ()
    """Change a parameter."""


@dataclass(frozen=True, kw_only=True)
class Terminate(OneRunAnywhere):
    """Stop a run without its exit handler; a second time: at once, without time to save anything."""


@dataclass(frozen=True, kw_only=True)
class Resume(OneRun):
    """Let suspended steps continue, or continue a run that lost its launcher."""

    node_field_selector: Annotated[str, Flag(metavar="FIELD=VALUE,...")] = ""
    """Only steps that match."""


@dataclass(frozen=True, kw_only=True)
class Retry(Resume, OneRunAnywhere):
    """Continue a run that failed or was stopped: steps that did not succeed run again."""

    restart_successful: bool = False
    """Also rerun steps of --node-field-selector, and those after them."""
    parameter: _Parameters = ()
    """Change a parameter."""


@dataclass(frozen=True, kw_only=True)
class Stop(Resume, OneRunAnywhere):
    """Stop a run with all its processes; its exit handler still runs."""

    message: str = ""
    """Message of the suspended steps that --node-field-selector selects, which then fail."""


@dataclass(frozen=True, kw_only=True)
class Set(Resume):
    """Set a suspended step's outputs, or end it."""

    phase: Literal["", "Succeeded", "Failed", "Error"] = ""
    """How the step ends; empty: it stays suspended."""
    message: str = ""
    """Message of the step."""
    output_parameter: _Values = ()
    """The value of an output parameter."""
