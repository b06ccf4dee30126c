"""A role's pod template: what of it an Argo template takes as it is."""

from typing import Any

from everstep.convert.field_reader import Fields
from everstep.convert.source import Pod
from everstep.runtime.workflow.manifest.yaml_source import FieldPath

_CONTAINER = {
    "imagePullPolicy": str, "env": list, "envFrom": list, "workingDir": str, "resources": dict, "volumeMounts": list,
}  # fmt: skip
_TEMPLATE = {
    "nodeSelector": dict, "tolerations": list, "affinity": dict, "volumes": list, "schedulerName": str,
    "priorityClassName": str, "hostAliases": list,
}  # fmt: skip
_USUAL = ("restartPolicy", "terminationGracePeriodSeconds", "dnsPolicy")
"""Fields of a pod that the agent and the platform decide."""


def read_pod(fields: Fields, path: FieldPath) -> Pod:
    """The pod of the template at `path`. Raises ConvertError."""
    spec, metadata = (*path, "spec"), (*path, "metadata")
    if not fields.length(*spec, "containers"):
        raise fields.wrong("missing: the pod needs a container", *spec, "containers")
    first = (*spec, "containers", 0)
    container = {name: fields.take(kind, *first, name) for name, kind in _CONTAINER.items() if fields.has(*first, name)}
    template = {name: fields.take(kind, *spec, name) for name, kind in _TEMPLATE.items() if fields.has(*spec, name)}
    more = {
        name: fields.take(dict, *metadata, name) for name in ("labels", "annotations") if fields.has(*metadata, name)
    }
    if more:
        template["metadata"] = more
    secrets = fields.take(list, *spec, "imagePullSecrets", default=[])
    for name in ("name", "terminationMessagePath", "terminationMessagePolicy"):
        fields.skip(*first, name)
    fields.skip(*metadata, "creationTimestamp")
    if not fields.has(*spec, "securityContext") or not fields.keys(*spec, "securityContext"):
        fields.skip(*spec, "securityContext")
    return Pod(
        fields.take(str, *first, "image"), read_command(fields, first), container, template,
        {"imagePullSecrets": secrets} if secrets else {},
    )  # fmt: skip


def read_command(fields: Fields, path: FieldPath) -> tuple[str, ...]:
    """`command` and `args` of the container at `path`. Raises ConvertError."""
    return (*_texts(fields, (*path, "command")), *_texts(fields, (*path, "args")))


def _texts(fields: Fields, path: FieldPath) -> list[str]:
    texts: list[Any] = fields.take(list, *path, default=[])
    for number, word in enumerate(texts):
        if not isinstance(word, str):
            raise fields.wrong(f"{word!r} is not a string; put it in quotes", *path, number)
    return texts
