"""Lint of single fields: durations, numbers, scripts, outputs that nothing writes, ConfigMaps, what is unused."""

import ast
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from everstep.runtime.workflow.engine import gates
from everstep.runtime.workflow.engine.template_call import UNLISTABLE
from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.expressions.tags import for_each_text, names_read
from everstep.runtime.workflow.lint.scripts import PYTHON
from everstep.runtime.workflow.manifest.durations import DurationError, parse_int, parse_seconds
from everstep.runtime.workflow.manifest.fields import METRIC_NAME, kind_of, list_at
from everstep.runtime.workflow.manifest.library import AbsentObjectError, Library, MissingObjectError
from everstep.runtime.workflow.manifest.patch import apply_patch
from everstep.runtime.workflow.manifest.schema import Problem, Where, type_problems
from everstep.runtime.workflow.manifest.template_walk import TemplateAt, hooks, tasks, templates
from everstep.runtime.workflow.manifest.yaml_source import ReadError, read_text

RawFinding = tuple[str, bool, Problem]


def findings(source: Mapping[str, Any], spec: Mapping[str, Any], library: Library) -> Iterator[RawFinding]:
    """Of the whole workflow."""
    for holder, where in [(spec, ("spec",)), *((at.template, at.where) for at in templates(spec))]:
        yield from _account_findings(holder, where)
    for at in templates(spec):
        yield from _template_duration_findings(at)
        yield from _retry_findings(at.template.get("retryStrategy"), (*at.where, "retryStrategy"))
        yield from _gate_findings(at, library)
        yield from _container_findings(at)
        yield from _output_findings(at)
        yield from _artifact_findings(at)
        yield from _config_map_findings(list_at(at.template, "inputs", "parameters"), (*at.where, "inputs"), library)
        yield from _metric_findings(at.template, at.where)
        yield from _data_findings(at)
        yield from _enum_findings(at)
    yield from _retry_findings(spec.get("retryStrategy"), ("spec", "retryStrategy"))
    yield from _patch_findings({}, spec.get("podSpecPatch") or "", ("spec", "podSpecPatch"))
    yield from _config_map_findings(list_at(spec, "arguments", "parameters"), ("spec", "arguments"), library)
    yield from _metric_findings(spec, ("spec",))
    yield from _clash_findings(spec)
    yield from _unused_findings(spec)
    yield from _key_findings(spec)
    try:
        library.artifact_repository(spec)
    except MissingObjectError as error:
        yield "artifact", True, error.problem(("spec", "artifactRepositoryRef"))
    yield from _lock_findings(spec, ("spec",), library)


def _data_findings(at: TemplateAt) -> Iterator[RawFinding]:
    """A source that fails when it runs."""
    paths = ((at.template.get("data") or {}).get("source") or {}).get("artifactPaths") or {}
    for kind in UNLISTABLE:
        if paths.get(kind):
            where = (*at.where, "data", "source", "artifactPaths", kind)
            yield "data", True, Problem(where, f"paths of {kind} cannot be listed; use s3")


def _template_duration_findings(at: TemplateAt) -> Iterator[RawFinding]:
    template = at.template
    places: list[tuple[Any, Where]] = [
        (template.get("timeout"), ("timeout",)),
        ((template.get("suspend") or {}).get("duration"), ("suspend", "duration")),
        (((template.get("containerSet") or {}).get("retryStrategy") or {}).get("duration"), ("containerSet",)),
    ]
    for value, path in places:
        yield from _duration_findings(value, (*at.where, *path))


def _duration_findings(value: Any, where: Where) -> Iterator[RawFinding]:
    if value is None or "{{" in str(value):
        return
    try:
        parse_seconds(value)
    except DurationError as error:
        yield "duration", True, Problem(where, f"{error}; write 90s, 1.5m or 1h30m")


def _retry_findings(strategy: Any, where: Where) -> Iterator[RawFinding]:
    if not strategy:
        return
    backoff = strategy.get("backoff") or {}
    for field in ("duration", "cap", "maxDuration"):
        yield from _duration_findings(backoff.get(field), (*where, "backoff", field))
    if backoff and not backoff.get("duration"):
        yield "retry", True, Problem((*where, "backoff"), "needs a duration")
    for value, path in ((strategy.get("limit"), ("limit",)), (backoff.get("factor"), ("backoff", "factor"))):
        if value is None or "{{" in str(value):
            continue
        try:
            if parse_int(value) < 0:
                yield "retry", True, Problem((*where, *path), f"{value} is below 0, so nothing is retried")
        except ExpressionError:
            yield "retry", path != ("limit",), Problem((*where, *path), f"{value!r} is not a whole number")


def _lock_findings(holder: Mapping[str, Any], where: Where, library: Library) -> Iterator[RawFinding]:
    semaphores = list_at(holder, "synchronization", "semaphores")
    if any(semaphore.get("database") for semaphore in semaphores):
        return  # Refused already: not supported here.
    try:
        gates.declared_locks(holder, "default", library)
    except ExpressionError as error:
        here, cause = (*where, "synchronization"), error.__cause__
        is_absent = isinstance(cause, AbsentObjectError)
        yield "lock", True, cause.problem(here) if is_absent else Problem(here, str(error))


def _gate_findings(at: TemplateAt, library: Library) -> Iterator[RawFinding]:
    yield from _lock_findings(at.template, at.where, library)
    memoize = at.template.get("memoize") or {}
    if memoize and "{{" not in str(memoize):
        try:
            gates.declared_memo(at.template)
        except ExpressionError as error:
            yield "memoize", True, Problem((*at.where, "memoize"), str(error))


def _container_findings(at: TemplateAt) -> Iterator[RawFinding]:
    template = at.template
    for kind in ("container", "script"):
        container = template.get(kind) or {}
        command = list_at(container, "command")
        first = str(command[0]) if command else ""
        if first and "{{" not in first and " " not in first and shutil.which(first) is None:
            message = f"{first}: no such program on this machine; an image may bring it (run --path)"
            yield "here", False, Problem((*at.where, kind, "command"), message)
        if len(command) == 1 and " " in str(command[0]) and not str(command[0]).startswith("{{"):
            message = f"{command[0]!r} is a single word; list each word separately, or use [sh, -c, ...]"
            yield "command", True, Problem((*at.where, kind, "command"), message)
    script = template.get("script")
    if script is not None:
        source = str(script.get("source") or "")
        if not source.strip():
            yield "script", False, Problem((*at.where, "script"), "has no source")
        elif list_at(script, "command") and PYTHON.match(str(script["command"][0])) and "{{" not in source:
            yield from _python_findings(source, (*at.where, "script", "source"))
    yield from _patch_findings(template, template.get("podSpecPatch") or "", (*at.where, "podSpecPatch"))


def _python_findings(source: str, where: Where) -> Iterator[RawFinding]:
    try:
        ast.parse(source)
    except SyntaxError as error:
        mend = "; remove the indentation" if isinstance(error, IndentationError) else ""
        yield "script", True, Problem(where, f"not Python, line {error.lineno}: {error.msg}{mend}")


def _patch_findings(template: Mapping[str, Any], patch: str, where: Where) -> Iterator[RawFinding]:
    if not patch or "{{" in patch:
        return
    try:
        apply_patch(template, patch)
        pod = next(iter(document.value for document in read_text(patch)), {})
    except (ExpressionError, ReadError):
        yield "patch", True, Problem(where, "is not a patch of a pod; give YAML with containers, volumes...")
        return
    pod_fields = ("containers", "initContainers", "volumes")
    for key in pod:
        if key in ("env", "command", "args", "image", "resources", "volumeMounts"):
            yield "patch", False, Problem(where, f"{key} is a field of a container: put it below containers")
    for field in pod_fields[:2]:
        for problem in type_problems(pod.get(field) or [], "[Script]"):
            if problem.message.startswith("there is no such field"):
                yield "patch", False, Problem(where, f"{field}: {problem.where[-1]}: {problem.message}")


def _output_findings(at: TemplateAt) -> Iterator[RawFinding]:
    """Files that no text of the container names will hardly be there."""
    if kind_of(at.template) not in ("container", "script"):
        return
    texts: list[str] = []
    for field in ("container", "script", "initContainers", "sidecars", "volumes", "inputs"):
        for_each_text(at.template.get(field), texts.append)
    whole_text = "\n".join(texts)
    entries: list[tuple[str, int, Any, bool]] = []
    for index, entry in enumerate(list_at(at.template, "outputs", "parameters")):
        source = entry.get("valueFrom") or {}
        entries.append(("parameters", index, source.get("path"), "default" in source))
    for index, entry in enumerate(list_at(at.template, "outputs", "artifacts")):
        entries.append(("artifacts", index, entry.get("path"), bool(entry.get("optional"))))
    for kind, index, path, is_excused in entries:
        if not path or is_excused or "{{" in path or "outputs." in whole_text:
            continue
        here = (*at.where, "outputs", kind, index)
        folders = [folder for folder in _parent_folders(path) if folder not in ("/", "/tmp", "/mnt")]
        if not any(_mentions(part, whole_text) for part in [os.path.basename(path), *folders]):
            yield (
                "output",
                False,
                Problem(here, f"nothing in the container mentions {path}; does the program write it?"),
            )
        elif kind == "parameters" and re.search(rf"mkdir (?:-p )?{re.escape(path)}(?:\s|;|$)", whole_text):
            yield "output", False, Problem(here, f"{path} is created as a folder, but a parameter must be a file")


def _mentions(part: str, text: str) -> bool:
    return re.search(rf"(?<![\w]){re.escape(part)}(?![\w])", text) is not None


def _parent_folders(path: str) -> Iterator[str]:
    while path not in ("/", ""):
        path = os.path.dirname(path)
        yield path


def _artifact_findings(at: TemplateAt) -> Iterator[RawFinding]:
    for side in ("inputs", "outputs"):
        for index, entry in enumerate(list_at(at.template, side, "artifacts")):
            archives = [kind for kind, value in (entry.get("archive") or {}).items() if value is not None]
            if len(archives) > 1:
                here = (*at.where, side, "artifacts", index, "archive")
                yield "artifact", False, Problem(here, f"has {' and '.join(archives)}; keep one")


def _key_findings(spec: Mapping[str, Any]) -> Iterator[RawFinding]:
    """Keys of input artifacts that nothing here writes."""
    key_texts = [str((entry.get("s3") or {}).get("key") or "") for at in templates(spec)
               for entry in list_at(at.template, "outputs", "artifacts")]  # fmt: skip
    for at in templates(spec):
        for index, entry in enumerate(list_at(at.template, "inputs", "artifacts")):
            key = str((entry.get("s3") or {}).get("key") or "")
            if (
                key
                and "{{" not in key
                and not any("{{" in key_text or key.startswith(key_text) for key_text in key_texts if key_text)
            ):
                here = (*at.where, "inputs", "artifacts", index, "s3", "key")
                yield (
                    "artifact",
                    False,
                    Problem(here, f"nothing in this workflow writes {key}; it must exist beforehand"),
                )


def _config_map_findings(parameters: list[Any], where: Where, library: Library) -> Iterator[RawFinding]:
    for index, entry in enumerate(parameters):
        source = entry.get("valueFrom") or {}
        reference = source.get("configMapKeyRef")
        if not reference or "{{" in str(reference) or source.get("default") is not None:
            continue
        try:
            library.parameter(str(reference.get("name")), str(reference.get("key")))
        except MissingObjectError as error:
            yield "config-map", True, error.problem((*where, "parameters", index, "valueFrom"))


def _metric_findings(holder: Mapping[str, Any], where: Where) -> Iterator[RawFinding]:
    for index, metric in enumerate(list_at(holder, "metrics", "prometheus")):
        here = (*where, "metrics", "prometheus", index)
        name = str(metric.get("name") or "")
        if not METRIC_NAME.fullmatch(name):
            yield (
                "metric",
                False,
                Problem((*here, "name"), f"{name!r} is not a valid metric name; use letters, digits and _"),
            )
        for kind in ("gauge", "counter", "histogram"):
            value = str((metric.get(kind) or {}).get("value") or "")
            if value and "{{" not in value and not re.fullmatch(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?", value):
                yield "metric", False, Problem((*here, kind, "value"), f"{value!r} is not a number")


def _account_findings(holder: Mapping[str, Any], where: Where) -> Iterator[RawFinding]:
    name = str(holder.get("serviceAccountName") or "default")
    if name != "default" and "{{" not in name:
        message = f"the service account {name!r} must exist in the cluster; it has no effect on this machine"
        yield "cluster", False, Problem((*where, "serviceAccountName"), message)


def _enum_findings(at: TemplateAt) -> Iterator[RawFinding]:
    for index, entry in enumerate(list_at(at.template, "inputs", "parameters")):
        default = entry.get("value", entry.get("default"))
        if entry.get("enum") and default is not None and str(default) not in map(str, entry["enum"]):
            here = (*at.where, "inputs", "parameters", index)
            yield "enum", False, Problem(here, f"{default!r} is not in its enum: {', '.join(map(str, entry['enum']))}")


def _clash_findings(spec: Mapping[str, Any]) -> Iterator[RawFinding]:
    for holder, where in [(spec, ("spec",)), *((at.template, at.where) for at in templates(spec))]:
        volume_names: set[str] = set()
        for index, volume in enumerate(list_at(holder, "volumes")):
            if volume.get("name") in volume_names:
                yield (
                    "duplicate",
                    False,
                    Problem((*where, "volumes", index, "name"), f"{volume['name']!r} appears twice"),
                )
            volume_names.add(str(volume.get("name")))
    exports: dict[str, str] = {}
    for at in templates(spec):
        for index, entry in enumerate(list_at(at.template, "outputs", "parameters")):
            name = entry.get("globalName")
            if name and name in exports:
                here = (*at.where, "outputs", "parameters", index, "globalName")
                yield (
                    "duplicate",
                    False,
                    Problem(here, f"{name!r} is also exported by {exports[name]}; the later one wins"),
                )
            elif name:
                exports[name] = str(at.template.get("name"))
        for task_at in tasks(at):
            if str(task_at.task.get("name") or "")[:1].isdigit():
                message = f"{task_at.task['name']!r} begins with a digit, which depends cannot name"
                yield "name", False, Problem((*task_at.where, "name"), message)


def _unused_findings(spec: Mapping[str, Any]) -> Iterator[RawFinding]:
    called_names = {spec.get("entrypoint"), spec.get("onExit")}
    called_names |= {hook.get("template") for _, hook, _ in hooks(spec)}
    for at in templates(spec):
        called_names |= {task_at.task.get("template") for task_at in tasks(at)} | {
            task_at.task.get("onExit") for task_at in tasks(at)
        }
    for index, template in enumerate(list_at(spec, "templates")):
        where = ("spec", "templates", index)
        if template.get("name") not in called_names:
            yield "unused", False, Problem((*where, "name"), f"{template.get('name')!r} is never used")
    for at in templates(spec):
        read = names_read({key: value for key, value in at.template.items() if key != "inputs"})
        every = any(name in ("inputs", "inputs.parameters") for name in read)
        own = names_read(at.template.get("inputs"))
        for number, entry in enumerate(list_at(at.template, "inputs", "parameters")):
            name = f"inputs.parameters.{entry.get('name')}"
            if not every and name not in read | own:
                here = (*at.where, "inputs", "parameters", number, "name")
                yield "unused", False, Problem(here, f"{entry.get('name')!r} is not used in the template")
