"""An Argo Workflow manifest as data, and the refusal by name of what this executor does not do.

Every field must stand in one of the tables below: what has an effect, or what has none on one machine (pod placement,
garbage collection, security contexts). Anything else raises ManifestError with its path.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from runtime.workflow.expressions import ExpressionError, names

API_VERSION, KIND = "argoproj.io/v1alpha1", "Workflow"
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
TEMPLATE_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9]{0,127}")
_REFERENCE = re.compile(r"\{\{\s*((?:workflow|inputs|tasks)\.[\w.-]+)\s*\}\}")
STATES = ("Succeeded", "Failed", "Errored", "Skipped", "Omitted", "Daemoned")

EFFECT: dict[str, set[str]] = {
    "manifest": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"entrypoint", "arguments", "templates", "onExit", "shutdown"},
    "arguments": {"parameters", "artifacts"},
    "template": {"name", "inputs", "outputs", "dag", "container", "retryStrategy", "activeDeadlineSeconds"},
    "dag": {"tasks", "failFast"},
    "task": {"name", "template", "arguments", "depends", "dependencies", "when"},
    "parameter": {"name", "value", "default", "description", "enum", "valueFrom"},
    "valueFrom": {"path", "default"},
    "artifact": {"name", "path", "archive", "from", "optional"},
    "archive": {"none"},
    "container": {"command", "args", "env", "image", "name"},
    "env": {"name", "value"},
    "retryStrategy": {"limit", "retryPolicy", "expression", "backoff"},
    "backoff": {"duration", "factor", "cap", "maxDuration"},
}
NO_EFFECT: dict[str, set[str]] = {
    "spec": {"serviceAccountName", "podGC", "ttlStrategy", "securityContext", "archiveLogs", "priority", "tolerations",
             "nodeSelector", "affinity", "imagePullSecrets", "podMetadata", "workflowMetadata"},
    "template": {"metadata", "securityContext", "volumes", "nodeSelector", "affinity", "tolerations",
                 "serviceAccountName", "automountServiceAccountToken", "priorityClassName", "schedulerName"},
    "container": {"resources", "volumeMounts", "imagePullPolicy", "securityContext"},
    "artifact": {"description", "mode"},
    "dag": set(),
}  # fmt: skip


class ManifestError(ValueError):
    """The manifest cannot be run: one line with the path and the mend."""


@dataclass(frozen=True)
class Task:
    """One task of a DAG template."""

    name: str
    template: str
    parameters: Mapping[str, str]
    artifacts: Mapping[str, str]
    depends: str
    """An expr-lang text; empty: it runs at once."""
    when: str


@dataclass(frozen=True)
class Template:
    """A DAG, or a container. `raw` is as it stands in the manifest."""

    name: str
    raw: Mapping[str, Any]
    tasks: tuple[Task, ...] = ()
    inputs: Mapping[str, str | None] = field(default_factory=dict)
    """Input parameters and their defaults."""

    @property
    def is_dag(self) -> bool:
        """A DAG of tasks, not a pod."""
        return "dag" in self.raw

    @property
    def retry(self) -> Mapping[str, Any] | None:
        """Its retryStrategy."""
        return self.raw.get("retryStrategy")


@dataclass(frozen=True)
class Manifest:
    """A whole workflow."""

    raw: Mapping[str, Any]
    name: str
    """metadata.name; empty when a name is to be generated."""
    generate_name: str
    entrypoint: str
    on_exit: str
    parameters: Mapping[str, str]
    templates: Mapping[str, Template]


def parse(source: Mapping[str, Any] | str) -> Manifest:
    """The manifest. Raises ManifestError: unreadable, inconsistent, or beyond this executor."""
    try:
        return _parse(source)
    except (KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"a field is missing or of a wrong type: {error}") from None


def _parse(source: Mapping[str, Any] | str) -> Manifest:
    if isinstance(source, str):
        try:
            source = yaml.safe_load(source)
        except yaml.YAMLError as error:
            raise ManifestError(f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(source, Mapping):
        raise ManifestError("the manifest is no mapping")
    _known("manifest", source, "")
    if (source.get("apiVersion"), source.get("kind")) != (API_VERSION, KIND):
        raise ManifestError(f"kind {source.get('kind')}: only {API_VERSION} {KIND} can be run")
    metadata, spec = source.get("metadata") or {}, source.get("spec") or {}
    _known("spec", spec, "spec")
    arguments = spec.get("arguments") or {}
    _known("arguments", arguments, "spec.arguments")
    if arguments.get("artifacts"):
        raise ManifestError("spec.arguments.artifacts: not supported here; pass a URI as a parameter")
    templates = {t.name: t for t in _templates(spec.get("templates") or [])}
    parameters = dict(_arguments(arguments, "spec.arguments"))
    manifest = Manifest(
        source, str(metadata.get("name") or ""), str(metadata.get("generateName") or ""),
        str(spec.get("entrypoint") or ""), str(spec.get("onExit") or ""), parameters, templates,
    )  # fmt: skip
    _check(manifest)
    return manifest


def _known(kind: str, value: Any, path: str) -> None:
    if not isinstance(value, Mapping):
        raise ManifestError(f"{path or kind}: must be a mapping")
    for key in value:
        if key not in EFFECT[kind] and key not in NO_EFFECT.get(kind, ()):
            raise ManifestError(f"{path}{'.' if path else ''}{key}: not supported by the executor on this machine")


def _arguments(arguments: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for entry in arguments.get("parameters") or []:
        _known("parameter", entry, f"{path}.parameters")
        if "valueFrom" in entry:
            raise ManifestError(f"{path}.{entry.get('name')}.valueFrom: not supported here")
        if entry.get("value", entry.get("default")) is None:
            raise ManifestError(f"{path}.{entry.get('name')}.value: is required")
        yield str(entry["name"]), _text(entry.get("value", entry.get("default")))


def _text(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _templates(raw: list[Mapping[str, Any]]) -> Iterator[Template]:
    seen: set[str] = set()
    for entry in raw:
        path = f"templates.{entry.get('name')}"
        _known("template", entry, path)
        if entry["name"] in seen:
            raise ManifestError(f"{path}: two templates have this name")
        seen.add(entry["name"])
        if ("dag" in entry) == ("container" in entry):
            raise ManifestError(f"{path}: needs either a dag or a container")
        inputs = _io(entry.get("inputs") or {}, f"{path}.inputs")
        _io(entry.get("outputs") or {}, f"{path}.outputs")
        _retry(entry.get("retryStrategy"), path)
        tasks: tuple[Task, ...] = ()
        if not TEMPLATE_NAME.fullmatch(str(entry["name"])):
            raise ManifestError(f"{path}: names are of letters, digits and -")
        if "dag" in entry:
            if entry.get("retryStrategy") or entry.get("outputs"):
                raise ManifestError(f"{path}: retryStrategy and outputs of a dag are not supported here")
            tasks = tuple(_tasks(entry["dag"], path))
        else:
            _known("container", entry["container"], f"{path}.container")
            if not entry["container"].get("image"):
                raise ManifestError(f"{path}.container.image: is required")
            if not entry["container"].get("command"):
                raise ManifestError(f"{path}.container.command: is required, as no image is asked for it here")
            for variable in entry["container"].get("env") or []:
                _known("env", variable, f"{path}.container.env.{variable.get('name')}")
        yield Template(entry["name"], entry, tasks, inputs)


def _io(io: Mapping[str, Any], path: str) -> dict[str, str | None]:
    _known("arguments", io, path)
    found: dict[str, str | None] = {}
    for entry in io.get("parameters") or []:
        _known("parameter", entry, f"{path}.{entry.get('name')}")
        if source := entry.get("valueFrom"):
            _known("valueFrom", source, f"{path}.{entry['name']}.valueFrom")
        default = entry.get("value", entry.get("default"))
        found[entry["name"]] = None if default is None else _text(default)
    for entry in io.get("artifacts") or []:
        _known("artifact", entry, f"{path}.{entry.get('name')}")
        _known("archive", entry.get("archive") or {}, f"{path}.{entry['name']}.archive")
        if path.endswith("inputs"):
            raise ManifestError(f"{path}.{entry['name']}: input artifacts are not supported here; pass a URI")
    return found


def _retry(strategy: Mapping[str, Any] | None, path: str) -> None:
    if strategy is None:
        return
    _known("retryStrategy", strategy, f"{path}.retryStrategy")
    _known("backoff", strategy.get("backoff") or {}, f"{path}.retryStrategy.backoff")
    policy = strategy.get("retryPolicy", "OnFailure")
    if policy not in ("Always", "OnFailure", "OnError", "OnTransientError"):
        raise ManifestError(f"{path}.retryStrategy.retryPolicy: {policy} is none of Always, OnFailure, OnError")
    if policy == "OnTransientError":
        raise ManifestError(f"{path}.retryStrategy.retryPolicy: OnTransientError is not supported here")


def _tasks(dag: Mapping[str, Any], path: str) -> Iterator[Task]:
    _known("dag", dag, f"{path}.dag")
    raw = dag.get("tasks") or []
    if not raw:
        raise ManifestError(f"{path}.dag.tasks: is empty")
    known = {entry.get("name") for entry in raw}
    if len(known) != len(raw):
        raise ManifestError(f"{path}.dag: two tasks have one name")
    for entry in raw:
        here = f"{path}.{entry.get('name')}"
        _known("task", entry, here)
        if not TEMPLATE_NAME.fullmatch(str(entry["name"])):
            raise ManifestError(f"{here}: names of tasks are of letters, digits and -")
        if not entry.get("template"):
            raise ManifestError(f"{here}.template: is required")
        arguments = entry.get("arguments") or {}
        _known("arguments", arguments, f"{here}.arguments")
        if arguments.get("artifacts"):
            raise ManifestError(f"{here}.arguments.artifacts: not supported here; pass a URI")
        if entry.get("depends") and entry.get("dependencies"):
            raise ManifestError(f"{here}: has both depends and dependencies")
        depends = entry.get("depends") or " && ".join(entry.get("dependencies") or [])
        _depends(depends, known, here)
        yield Task(
            entry["name"], entry["template"], dict(_arguments(arguments, f"{here}.arguments")), {}, depends,
            str(entry.get("when") or ""),
        )  # fmt: skip


def _depends(depends: str, known: set[Any], path: str) -> None:
    for name in depends_on(depends, path):
        if name not in known:
            raise ManifestError(f"{path}.depends: there is no task {name}")


def depends_on(depends: str, path: str = "depends") -> set[str]:
    """The tasks that a `depends` reads. Raises ManifestError for one that cannot be read."""
    if not depends:
        return set()
    found = set()
    try:
        for name in names(dashed(depends)):
            task, _, state = name.partition(".")
            if state and state not in STATES:
                raise ManifestError(f"{path}.depends: {state} is not supported; use one of {', '.join(STATES)}")
            found.add(task.replace("__", "-"))
    except ExpressionError as error:
        raise ManifestError(f"{path}.depends: {error}") from None
    return found


def dashed(depends: str) -> str:
    """Task names as identifiers: expr-lang reads `-` as minus."""
    return re.sub(r"(?<=[A-Za-z0-9])-(?=[A-Za-z0-9])", "__", depends)


def _references(manifest: Manifest, template: Template) -> None:
    """Every tag of workflow parameters, inputs and tasks names something that is there."""
    tasks = {task.name: task for task in template.tasks}
    for name in _REFERENCE.findall(str(template.raw)):
        root, kind, *rest = name.split(".")
        known = True
        if root == "workflow" and kind == "parameters" and rest:
            known = ".".join(rest) in manifest.parameters
        elif root == "inputs" and kind == "parameters" and rest:
            known = ".".join(rest) in template.inputs
        elif root == "tasks":
            known = kind in tasks
            if known and rest[:2] == ["outputs", "parameters"]:
                outputs = (manifest.templates.get(tasks[kind].template) or template).raw.get("outputs") or {}
                known = rest[-1] in {entry["name"] for entry in outputs.get("parameters") or []}
        if not known:
            raise ManifestError(f"templates.{template.name}: {{{{{name}}}}} is not known here")


def _check(manifest: Manifest) -> None:
    for kind, name in (("entrypoint", manifest.entrypoint), ("onExit", manifest.on_exit)):
        if name not in manifest.templates and (name or kind == "entrypoint"):
            raise ManifestError(f"spec.{kind}: there is no template {name!r}")
    for template in manifest.templates.values():
        done: set[str] = set()
        for task in template.tasks:
            called = manifest.templates.get(task.template)
            if called is None:
                raise ManifestError(f"templates.{template.name}.{task.name}: there is no template {task.template}")
            for name, default in called.inputs.items():
                if default is None and name not in task.parameters:
                    raise ManifestError(
                        f"templates.{template.name}.{task.name}: inputs.parameters.{name} was not supplied"
                    )
        _references(manifest, template)
        waiting = {task.name: depends_on(task.depends) for task in template.tasks}
        while ready := {name for name, needs in waiting.items() if needs <= done} - done:
            done |= ready
        if left := sorted(set(waiting) - done):
            raise ManifestError(f"templates.{template.name}: {', '.join(left)} wait for each other")
