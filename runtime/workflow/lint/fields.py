"""Lint of single fields: durations, numbers, scripts, outputs that nothing writes, ConfigMaps, what is unused."""

import ast
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from everstep.runtime.workflow.engine import gates
from everstep.runtime.workflow.engine.template_call import UNLISTED
from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.expressions.tags import each_text, reads
from everstep.runtime.workflow.lint.scripts import PYTHON
from everstep.runtime.workflow.manifest.durations import DurationError, seconds, whole
from everstep.runtime.workflow.manifest.fields import METRIC_NAME, kind_of, listed
from everstep.runtime.workflow.manifest.library import Library, NotThereError
from everstep.runtime.workflow.manifest.patch import patched
from everstep.runtime.workflow.manifest.schema import Problem, Where, typed
from everstep.runtime.workflow.manifest.template_walk import At, hooks, tasks, templates
from everstep.runtime.workflow.manifest.yaml_source import ReadError, read_text

Found = tuple[str, bool, Problem]


def findings(source: Mapping[str, Any], spec: Mapping[str, Any], library: Library) -> Iterator[Found]:
    """Of the whole workflow."""
    for holder, where in [(spec, ("spec",)), *((at.template, at.where) for at in templates(spec))]:
        yield from _account(holder, where)
    for at in templates(spec):
        yield from _durations(at)
        yield from _retry(at.template.get("retryStrategy"), (*at.where, "retryStrategy"))
        yield from _gates(at, library)
        yield from _containers(at)
        yield from _outputs(at)
        yield from _artifacts(at)
        yield from _config_maps(listed(at.template, "inputs", "parameters"), (*at.where, "inputs"), library)
        yield from _metrics(at.template, at.where)
        yield from _data(at)
        yield from _enums(at)
    yield from _retry(spec.get("retryStrategy"), ("spec", "retryStrategy"))
    yield from _patch({}, spec.get("podSpecPatch") or "", ("spec", "podSpecPatch"))
    yield from _config_maps(listed(spec, "arguments", "parameters"), ("spec", "arguments"), library)
    yield from _metrics(spec, ("spec",))
    yield from _clashes(spec)
    yield from _unused(spec)
    yield from _keys(spec)
    try:
        library.artifact_repository(spec)
    except NotThereError as error:
        yield "artifact", True, Problem(("spec", "artifactRepositoryRef"), str(error))
    try:
        gates.locks(spec, "default", library)
    except ExpressionError as error:
        yield "lock", True, Problem(("spec", "synchronization"), str(error))


def _data(at: At) -> Iterator[Found]:
    """A source that fails when it runs."""
    told = ((at.template.get("data") or {}).get("source") or {}).get("artifactPaths") or {}
    for kind in UNLISTED:
        if told.get(kind):
            where = (*at.where, "data", "source", "artifactPaths", kind)
            yield "data", True, Problem(where, f"paths of {kind} cannot be listed; use s3")


def _durations(at: At) -> Iterator[Found]:
    template = at.template
    places: list[tuple[Any, Where]] = [
        (template.get("timeout"), ("timeout",)),
        ((template.get("suspend") or {}).get("duration"), ("suspend", "duration")),
        (((template.get("containerSet") or {}).get("retryStrategy") or {}).get("duration"), ("containerSet",)),
    ]
    for value, path in places:
        yield from _duration(value, (*at.where, *path))


def _duration(value: Any, where: Where) -> Iterator[Found]:
    if value is None or "{{" in str(value):
        return
    try:
        seconds(value)
    except DurationError as error:
        yield "duration", True, Problem(where, f"{error}; write 90s, 1.5m or 1h30m")


def _retry(strategy: Any, where: Where) -> Iterator[Found]:
    if not strategy:
        return
    backoff = strategy.get("backoff") or {}
    for field in ("duration", "cap", "maxDuration"):
        yield from _duration(backoff.get(field), (*where, "backoff", field))
    if backoff and not backoff.get("duration"):
        yield "retry", True, Problem((*where, "backoff"), "needs a duration")
    for value, path in ((strategy.get("limit"), ("limit",)), (backoff.get("factor"), ("backoff", "factor"))):
        if value is None or "{{" in str(value):
            continue
        try:
            if whole(value) < 0:
                yield "retry", True, Problem((*where, *path), f"{value} is below 0: nothing is tried again")
        except ExpressionError:
            yield "retry", path != ("limit",), Problem((*where, *path), f"{value!r} is no whole number")


def _gates(at: At, library: Library) -> Iterator[Found]:
    try:
        gates.locks(at.template, "default", library)
    except ExpressionError as error:
        yield "lock", True, Problem((*at.where, "synchronization"), str(error))
    told = at.template.get("memoize") or {}
    if told and "{{" not in str(told):
        try:
            gates.memo(at.template)
        except ExpressionError as error:
            yield "memoize", True, Problem((*at.where, "memoize"), str(error))


def _containers(at: At) -> Iterator[Found]:
    template = at.template
    for kind in ("container", "script"):
        container = template.get(kind) or {}
        command = listed(container, "command")
        first = str(command[0]) if command else ""
        if first and "{{" not in first and " " not in first and shutil.which(first) is None:
            said = f"{first}: no such program on this machine; an image may bring it (run --path)"
            yield "here", False, Problem((*at.where, kind, "command"), said)
        if len(command) == 1 and " " in str(command[0]) and not str(command[0]).startswith("{{"):
            said = f"{command[0]!r} is one word; write each word by itself, or [sh, -c, ...]"
            yield "command", True, Problem((*at.where, kind, "command"), said)
    script = template.get("script")
    if script is not None:
        source = str(script.get("source") or "")
        if not source.strip():
            yield "script", False, Problem((*at.where, "script"), "has no source")
        elif listed(script, "command") and PYTHON.match(str(script["command"][0])) and "{{" not in source:
            yield from _python(source, (*at.where, "script", "source"))
    yield from _patch(template, template.get("podSpecPatch") or "", (*at.where, "podSpecPatch"))


def _python(source: str, where: Where) -> Iterator[Found]:
    try:
        ast.parse(source)
    except SyntaxError as error:
        mend = "; take the indentation away" if isinstance(error, IndentationError) else ""
        yield "script", True, Problem(where, f"no Python, line {error.lineno}: {error.msg}{mend}")


def _patch(template: Mapping[str, Any], patch: str, where: Where) -> Iterator[Found]:
    if not patch or "{{" in patch:
        return
    try:
        patched(template, patch)
        pod = next(iter(one.value for one in read_text(patch)), {})
    except (ExpressionError, ReadError):
        yield "patch", True, Problem(where, "is no patch of a pod: YAML with containers, volumes...")
        return
    known = ("containers", "initContainers", "volumes")
    for key in pod:
        if key in ("env", "command", "args", "image", "resources", "volumeMounts"):
            yield "patch", False, Problem(where, f"{key} is a field of a container: put it below containers")
    for field in known[:2]:
        for problem in typed(pod.get(field) or [], "[Script]"):
            if problem.message.startswith("there is no such field"):
                yield "patch", False, Problem(where, f"{field}: {problem.where[-1]}: {problem.message}")


def _outputs(at: At) -> Iterator[Found]:
    """Files that no text of the container names will hardly be there."""
    if kind_of(at.template) not in ("container", "script"):
        return
    texts: list[str] = []
    for field in ("container", "script", "initContainers", "sidecars", "volumes", "inputs"):
        each_text(at.template.get(field), texts.append)
    whole_text = "\n".join(texts)
    entries: list[tuple[str, int, Any, bool]] = []
    for index, entry in enumerate(listed(at.template, "outputs", "parameters")):
        source = entry.get("valueFrom") or {}
        entries.append(("parameters", index, source.get("path"), "default" in source))
    for index, entry in enumerate(listed(at.template, "outputs", "artifacts")):
        entries.append(("artifacts", index, entry.get("path"), bool(entry.get("optional"))))
    for kind, index, path, excused in entries:
        if not path or excused or "{{" in path or "outputs." in whole_text:
            continue
        here = (*at.where, "outputs", kind, index)
        folders = [folder for folder in _above(path) if folder not in ("/", "/tmp", "/mnt")]
        if not any(_names(part, whole_text) for part in [os.path.basename(path), *folders]):
            yield "output", False, Problem(here, f"nothing in the container names {path}: who writes it?")
        elif kind == "parameters" and re.search(rf"mkdir (?:-p )?{re.escape(path)}(?:\s|;|$)", whole_text):
            yield "output", False, Problem(here, f"{path} is made a folder; a parameter is a file")


def _names(part: str, text: str) -> bool:
    return re.search(rf"(?<![\w]){re.escape(part)}(?![\w])", text) is not None


def _above(path: str) -> Iterator[str]:
    while path not in ("/", ""):
        path = os.path.dirname(path)
        yield path


def _artifacts(at: At) -> Iterator[Found]:
    for side in ("inputs", "outputs"):
        for index, entry in enumerate(listed(at.template, side, "artifacts")):
            archives = [kind for kind, value in (entry.get("archive") or {}).items() if value is not None]
            if len(archives) > 1:
                here = (*at.where, side, "artifacts", index, "archive")
                yield "artifact", False, Problem(here, f"has {' and '.join(archives)}; keep one")


def _keys(spec: Mapping[str, Any]) -> Iterator[Found]:
    """Keys of input artifacts that nothing here writes."""
    written = [str((entry.get("s3") or {}).get("key") or "") for at in templates(spec)
               for entry in listed(at.template, "outputs", "artifacts")]  # fmt: skip
    for at in templates(spec):
        for index, entry in enumerate(listed(at.template, "inputs", "artifacts")):
            key = str((entry.get("s3") or {}).get("key") or "")
            if key and "{{" not in key and not any("{{" in one or key.startswith(one) for one in written if one):
                here = (*at.where, "inputs", "artifacts", index, "s3", "key")
                yield (
                    "artifact",
                    False,
                    Problem(here, f"nothing in this workflow writes {key}: it must lie there before"),
                )


def _config_maps(parameters: list[Any], where: Where, library: Library) -> Iterator[Found]:
    for index, entry in enumerate(parameters):
        source = entry.get("valueFrom") or {}
        reference = source.get("configMapKeyRef")
        if not reference or "{{" in str(reference) or source.get("default") is not None:
            continue
        try:
            library.parameter(str(reference.get("name")), str(reference.get("key")))
        except NotThereError as error:
            yield "config-map", True, Problem((*where, "parameters", index, "valueFrom"), str(error))


def _metrics(holder: Mapping[str, Any], where: Where) -> Iterator[Found]:
    for index, metric in enumerate(listed(holder, "metrics", "prometheus")):
        here = (*where, "metrics", "prometheus", index)
        name = str(metric.get("name") or "")
        if not METRIC_NAME.fullmatch(name):
            yield "metric", False, Problem((*here, "name"), f"{name!r} is no metric's name; use letters, digits and _")
        for kind in ("gauge", "counter", "histogram"):
            value = str((metric.get(kind) or {}).get("value") or "")
            if value and "{{" not in value and not re.fullmatch(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?", value):
                yield "metric", False, Problem((*here, kind, "value"), f"{value!r} is no number")


def _account(holder: Mapping[str, Any], where: Where) -> Iterator[Found]:
    name = str(holder.get("serviceAccountName") or "default")
    if name != "default" and "{{" not in name:
        said = f"the service account {name!r} must be in the cluster before; on this machine it means nothing"
        yield "cluster", False, Problem((*where, "serviceAccountName"), said)


def _enums(at: At) -> Iterator[Found]:
    for index, entry in enumerate(listed(at.template, "inputs", "parameters")):
        default = entry.get("value", entry.get("default"))
        if entry.get("enum") and default is not None and str(default) not in map(str, entry["enum"]):
            here = (*at.where, "inputs", "parameters", index)
            yield "enum", False, Problem(here, f"{default!r} is none of its enum: {', '.join(map(str, entry['enum']))}")


def _clashes(spec: Mapping[str, Any]) -> Iterator[Found]:
    for holder, where in [(spec, ("spec",)), *((at.template, at.where) for at in templates(spec))]:
        seen: set[str] = set()
        for index, volume in enumerate(listed(holder, "volumes")):
            if volume.get("name") in seen:
                yield (
                    "duplicate",
                    False,
                    Problem((*where, "volumes", index, "name"), f"{volume['name']!r} is there twice"),
                )
            seen.add(str(volume.get("name")))
    exported: dict[str, str] = {}
    for at in templates(spec):
        for index, entry in enumerate(listed(at.template, "outputs", "parameters")):
            name = entry.get("globalName")
            if name and name in exported:
                here = (*at.where, "outputs", "parameters", index, "globalName")
                yield (
                    "duplicate",
                    False,
                    Problem(here, f"{name!r} is exported by {exported[name]}, too; the later counts"),
                )
            elif name:
                exported[name] = str(at.template.get("name"))
        for called in tasks(at):
            if str(called.task.get("name") or "")[:1].isdigit():
                said = f"{called.task['name']!r} begins with a digit, which depends cannot name"
                yield "name", False, Problem((*called.where, "name"), said)


def _unused(spec: Mapping[str, Any]) -> Iterator[Found]:
    called = {spec.get("entrypoint"), spec.get("onExit")}
    called |= {hook.get("template") for _, hook, _ in hooks(spec)}
    for at in templates(spec):
        called |= {one.task.get("template") for one in tasks(at)} | {one.task.get("onExit") for one in tasks(at)}
    for index, template in enumerate(listed(spec, "templates")):
        where = ("spec", "templates", index)
        if template.get("name") not in called:
            yield "unused", False, Problem((*where, "name"), f"{template.get('name')!r} is used by nobody")
    for at in templates(spec):
        read = reads({key: value for key, value in at.template.items() if key != "inputs"})
        every = any(name in ("inputs", "inputs.parameters") for name in read)
        own = reads(at.template.get("inputs"))
        for number, entry in enumerate(listed(at.template, "inputs", "parameters")):
            name = f"inputs.parameters.{entry.get('name')}"
            if not every and name not in read | own:
                here = (*at.where, "inputs", "parameters", number, "name")
                yield "unused", False, Problem(here, f"{entry.get('name')!r} is used by nothing in the template")
