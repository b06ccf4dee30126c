"""A role's pod template: what of it a role's template in a job spec takes as it is."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from everstep.convert.field_reader import Fields, number_in
from everstep.convert.launchers.torchrun import NODES, PROCESSES
from everstep.convert.nearest import nearest
from everstep.convert.shell import filled_in_at_start
from everstep.convert.source import Pod
from everstep.runtime.job import pod_template
from everstep.runtime.job.pod_template import GRACE, LONGEST_GRACE_S
from everstep.runtime.workflow.manifest.environment import expand_references
from everstep.runtime.workflow.manifest.schema import KINDS
from everstep.runtime.workflow.manifest.yaml_source import FieldPath

_CONTAINER = [name for name in pod_template.CONTAINER if name not in ("image", "command", "args")]
_OF_OPERATORS = {
    name: name
    for name in (
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NODE_NUM", "WORKER_NUM", NODES, *PROCESSES,
    )
}  # fmt: skip
"""Variables that operators set, each with what it is called here."""
_REFERENCE = re.compile(r"\$\(([A-Z_][A-Z0-9_]*)\)")
"""To a variable; a command of a shell has a name in small letters."""
NOTHING: Mapping[str, str] = {}
_OF_WORKFLOW = "imagePullSecrets"
SPEC = [name for name in pod_template.SPEC if name != _OF_WORKFLOW]
"""Fields of a pod that a role's template has, too."""
_TYPES = {**pod_template.CONTAINER, **pod_template.SPEC, **pod_template.METADATA}
_CPUS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(m?)", re.ASCII)


def read_pod(fields: Fields, path: FieldPath, name: str = "", operators: Mapping[str, str] = NOTHING) -> Pod:
    """The pod of the template at `path`, of which the container called `name` trains, else the first. `operators`:
    variables that its operator sets besides the usual ones. Raises ConvertError."""
    spec, metadata = (*path, "spec"), (*path, "metadata")
    count = fields.length(*spec, "containers")
    if not count:
        raise fields.wrong("missing: the pod needs a container", *spec, "containers")
    places = (number for number in range(count) if fields.text_at(*spec, "containers", number, "name") == name)
    first = (*spec, "containers", next(places, 0) if name else 0)
    for number in set(range(count)) - {first[-1]}:
        fields.take(dict, *spec, "containers", number)
        fields.note(f"no counterpart; nearest: {nearest(('sidecar',))}", *spec, "containers", number)
    container = take_all(fields, "Container", _CONTAINER, first)
    note_requests(fields, (*first, "resources"))
    template = take_all(fields, "Template", SPEC, spec)
    if more := take_all(fields, "PodMetadata", pod_template.METADATA, metadata):
        template["metadata"] = more
    seconds = template.get(GRACE, 0)
    if fields.has(*spec, GRACE) and not 1 <= seconds <= LONGEST_GRACE_S:
        template.pop(GRACE, None)
        fields.note(f"{seconds}: no counterpart; nearest: 1 to {LONGEST_GRACE_S} seconds", *spec, GRACE)
    for name in ("name", "terminationMessagePath", "terminationMessagePolicy"):
        fields.skip(str, *first, name)
    fields.skip(str, *metadata, "creationTimestamp")
    return Pod(
        fields.take(str, *first, "image"), read_command(fields, first, container, operators), container, template,
        take_all(fields, "Spec", [_OF_WORKFLOW], spec), has_program(fields, first),
    )  # fmt: skip


def take_all(fields: Fields, holder: str, names: Iterable[str], path: FieldPath) -> dict[str, Any]:
    """Those of the fields that are there and not empty, each as Argo's `holder` has it. Raises ConvertError."""
    values: dict[str, Any] = {}
    for name in names:
        if not fields.has(*path, name):
            fields.skip(object, *path, name)
            continue
        if name in KINDS[holder]:
            fields.take_like(holder, name, *path, name)
        if value := fields.take(_TYPES[name], *path, name):
            values[name] = value
    return values


def note_requests(fields: Fields, path: FieldPath) -> None:
    """A node has one amount of each resource, its limit, and always one of memory: what this changes is noted."""
    if fields.has(*path, "claims"):
        fields.note(f"no counterpart; nearest: {nearest(('claims',))}", *path, "claims")
    memory_limit, memory = (fields.text_at(*path, kind, "memory") for kind in ("limits", "requests"))
    if memory and not memory_limit:
        fields.note(f"{memory}: here it is the limit, too; nearest: limits.memory", *path, "requests", "memory")
    elif not memory_limit:
        fields.note("no memory: nodes have the limit of the train step's own pod; nearest: limits.memory", *path)
    for name in fields.keys(*path, "requests"):
        request, limit = (fields.text_at(*path, kind, name) for kind in ("requests", "limits"))
        if limit and request != limit:
            fields.note(f"{request}: no counterpart; nearest: the limit, {limit}", *path, "requests", name)


def read_command(
    fields: Fields, path: FieldPath, container: Mapping[str, Any], operators: Mapping[str, str] = NOTHING
) -> tuple[str, ...]:
    """`command` and `args` of the container at `path`. `$(NAME)` in them is a variable of `container`, or one that its
    operator sets and a worker has: the usual ones and `operators`. Raises ConvertError."""
    variables, not_known = dict[str, str](), {**_OF_OPERATORS, **operators}
    for entry in container.get("env", ()):
        if entry.get("valueFrom"):
            not_known[str(entry.get("name"))] = str(entry.get("name"))
        else:
            variables[str(entry.get("name"))] = expand_references(str(entry.get("value") or ""), variables)
    words = (*read_texts(fields, (*path, "command")), *read_texts(fields, (*path, "args")))
    if container.get("envFrom"):  # Whose names stand elsewhere.
        not_known |= {name: name for name in _REFERENCE.findall(" ".join(words)) if name not in variables}
    return filled_in_at_start([expand_references(word, variables) for word in words], not_known)


def has_program(fields: Fields, path: FieldPath) -> bool:
    """Whether the container at `path` says what is run, not only with which arguments."""
    return bool(fields.length(*path, "command") or not fields.length(*path, "args"))


def read_texts(fields: Fields, path: FieldPath) -> list[str]:
    """The strings of a list; none if it is not there. Raises ConvertError."""
    texts: list[Any] = fields.take(list, *path, default=[])
    for number, word in enumerate(texts):
        if not isinstance(word, str):
            raise fields.wrong(f"{word!r} is not a string; put it in quotes", *path, number)
    return texts


def read_processes(fields: Fields, path: FieldPath, container: Mapping[str, Any], default: str) -> str:
    """What its operator tells a torchrun that its command does not tell how many workers a node has: a number, "auto"
    where they are as many as the container has GPUs, or `default`. A word without GPUs is 1, which is noted. Raises
    ConvertError."""
    if not fields.has(*path):
        return default
    if (how := fields.text_at(*path)) not in ("auto", "cpu", "gpu"):
        return str(fields.count(*path, least=1))
    fields.skip(str, *path)
    if how != "cpu" and gpus_of(container):
        return "auto"
    fields.note(f"{how}: 1 worker a node; nearest: slots in a job spec", *path)
    return "1"


def gpus_of(container: Mapping[str, Any]) -> int:
    """How many devices it asks for whose resource is called `.../gpu`."""
    amounts = amounts_of(container).items()
    return sum(number_in(str(amount)) or 0 for name, amount in amounts if str(name).endswith("/gpu"))


def cpus_of(container: Mapping[str, Any]) -> int:
    """How many CPUs it asks for, rounded up; at least 1."""
    match = _CPUS.fullmatch(str(amounts_of(container).get("cpu")))
    return max(1, math.ceil(float(match[1]) / (1000 if match[2] else 1))) if match else 1


def amounts_of(container: Mapping[str, Any]) -> dict[str, Any]:
    """Of each resource the limit, else the request."""
    resources = container.get("resources") or {}
    return {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
