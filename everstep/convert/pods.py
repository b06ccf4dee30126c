"""A role's pod template: what of it an Argo template takes as it is."""

from collections.abc import Iterable
from typing import Any

from everstep.convert.field_reader import Fields
from everstep.convert.source import Pod
from everstep.runtime.workflow.manifest.yaml_source import FieldPath

_CONTAINER = ("imagePullPolicy", "env", "envFrom", "workingDir", "resources", "volumeMounts")
_TEMPLATE = (
    "nodeSelector", "tolerations", "affinity", "volumes", "schedulerName", "priorityClassName", "hostAliases",
)  # fmt: skip
_UNDECLARED = {"tolerations": list, "affinity": dict, "hostAliases": list}
"""Argo's schema here says nothing of these."""


def read_pod(fields: Fields, path: FieldPath) -> Pod:
    """The pod of the template at `path`. Raises ConvertError."""
    spec, metadata = (*path, "spec"), (*path, "metadata")
    if not fields.length(*spec, "containers"):
        raise fields.wrong("missing: the pod needs a container", *spec, "containers")
    first = (*spec, "containers", 0)
    container = take_all(fields, "Container", _CONTAINER, first)
    template = take_all(fields, "Template", _TEMPLATE, spec)
    for name in template.keys() & _UNDECLARED.keys():
        fields.take(_UNDECLARED[name], *spec, name)
    more = take_all(fields, "PodMetadata", ("labels", "annotations"), metadata)
    if more:
        template["metadata"] = more
    secrets = fields.take(list, *spec, "imagePullSecrets", default=[])
    for name in ("name", "terminationMessagePath", "terminationMessagePolicy"):
        fields.skip(*first, name)
    fields.skip(*metadata, "creationTimestamp")
    for name in _CONTAINER:
        if not fields.has(*first, name):
            fields.skip(*first, name)
    if not fields.has(*spec, "securityContext") or not fields.keys(*spec, "securityContext"):
        fields.skip(*spec, "securityContext")
    return Pod(
        fields.take(str, *first, "image"), read_command(fields, first), container, template,
        {"imagePullSecrets": secrets} if secrets else {},
    )  # fmt: skip


def take_all(fields: Fields, holder: str, names: Iterable[str], path: FieldPath) -> dict[str, Any]:
    """Those of the fields that are there, each as Argo's `holder` has it. Raises ConvertError."""
    return {name: fields.take_like(holder, name, *path, name) for name in names if fields.has(*path, name)}


def read_command(fields: Fields, path: FieldPath) -> tuple[str, ...]:
    """`command` and `args` of the container at `path`. Raises ConvertError."""
    return (*_texts(fields, (*path, "command")), *_texts(fields, (*path, "args")))


def _texts(fields: Fields, path: FieldPath) -> list[str]:
    texts: list[Any] = fields.take(list, *path, default=[])
    for number, word in enumerate(texts):
        if not isinstance(word, str):
            raise fields.wrong(f"{word!r} is not a string; put it in quotes", *path, number)
    return texts
