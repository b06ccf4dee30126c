"""A role's own pod template: what its pods have otherwise than the train step's own. Pure.

In the shape of Kubernetes' PodTemplateSpec, as AITrainingJob has it. The agent stays each pod's program: `command` and
`args` are what its workers run. The agent and the platform decide `restartPolicy`.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

GRACE = "terminationGracePeriodSeconds"
CONTAINER: Mapping[str, type] = {
    "image": str, "imagePullPolicy": str, "workingDir": str, "command": list, "args": list, "env": list,
    "envFrom": list, "resources": dict, "volumeMounts": list, "securityContext": dict,
}  # fmt: skip
SPEC: Mapping[str, type] = {
    "volumes": list, "tolerations": list, "nodeSelector": dict, "affinity": dict, "hostAliases": list,
    "schedulerName": str, "priorityClassName": str, "imagePullSecrets": list, "runtimeClassName": str,
    "dnsPolicy": str, "dnsConfig": dict, "securityContext": dict, GRACE: int,
    "topologySpreadConstraints": list, "hostNetwork": bool, "hostIPC": bool, "shareProcessNamespace": bool,
}  # fmt: skip
METADATA: Mapping[str, type] = {"labels": dict, "annotations": dict}
DECIDED = {
    "spec": {"restartPolicy", "containers"},
    "container": {"name", "ports", "terminationMessagePath", "terminationMessagePolicy"},
    "metadata": {"creationTimestamp", "name"},
}
"""What may be there and says nothing here."""
LONGEST_GRACE_S = 86_400
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_KINDS = {str: "a text", list: "a list", dict: "a mapping", int: "a whole number", bool: "true or false"}


def problems(template: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with it, each `place: what`."""
    yield from _unknown(template, {"metadata": dict, "spec": dict}, set(), "")
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        return
    yield from _unknown(metadata, METADATA, DECIDED["metadata"], "metadata.")
    if spec.get("initContainers"):
        yield "spec.initContainers: a role waits for others by waitsFor; do the rest in the image or the command"
    yield from _unknown({k: v for k, v in spec.items() if k != "initContainers"}, SPEC, DECIDED["spec"], "spec.")
    if isinstance(seconds := spec.get(GRACE), int) and not 1 <= seconds <= LONGEST_GRACE_S:
        yield f"spec.{GRACE}: {seconds} is not between 1 and {LONGEST_GRACE_S}"
    containers = spec.get("containers") or []
    if not isinstance(containers, list) or not all(isinstance(container, dict) for container in containers):
        yield "spec.containers: a list of mappings is needed"
        return
    if len(containers) > 1:
        yield "spec.containers: one is needed, in which the workers run; a node has no sidecars"
    for container in containers[:1]:
        yield from _unknown(container, CONTAINER, DECIDED["container"], "spec.containers[0].")
        policy = container.get("imagePullPolicy")
        if policy and policy not in PULL_POLICIES:
            yield f"spec.containers[0].imagePullPolicy: {policy} is not one of {', '.join(PULL_POLICIES)}"
        for name in ("command", "args"):
            words = container.get(name)
            if isinstance(words, list) and not all(isinstance(word, str) for word in words):
                yield f"spec.containers[0].{name}: strings are needed; put numbers in quotes"


def _unknown(
    fields: Mapping[str, Any], allowed_fields: Mapping[str, type], ignored_fields: set[str], place: str
) -> Iterator[str]:
    for key, value in fields.items():
        kind = allowed_fields.get(key)
        if kind and value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            yield f"{place}{key}: {_KINDS[kind]} is needed"
        elif kind is None and key not in ignored_fields:
            yield f"{place}{key}: unknown; known are {', '.join(allowed_fields)}"


def container_of(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Its one container; empty without one."""
    return next(iter((template.get("spec") or {}).get("containers") or ()), {})


def command_of(template: Mapping[str, Any]) -> str:
    """What the workers run, as a shell reads it; empty: what those of other roles run."""
    container = container_of(template)
    return shlex.join([*(container.get("command") or ()), *(container.get("args") or ())])


def variables_of(template: Mapping[str, Any]) -> dict[str, str]:
    """Its variables whose values are written down, with references to each other as they are."""
    env = container_of(template).get("env") or ()
    return {variable["name"]: str(variable.get("value") or "") for variable in env if "valueFrom" not in variable}


def amounts_of(template: Mapping[str, Any]) -> dict[str, Any]:
    """The amount of each resource: its limit, or what is requested."""
    resources = container_of(template).get("resources") or {}
    return {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
