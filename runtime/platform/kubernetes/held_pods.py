"""Pods that passed a check and wait to become a training's nodes: who may take one, and how. Pure.

The check labels them; the training's platform takes one by a patch that gives it the labels of a node, and leaves it
what to run (`protocol.handover`). Invariant: a pod that nobody takes ends itself at its deadline, and so does one that
was taken but got nothing to run, because its new master died in between.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from everstep.runtime.job.spec_values import quantity
from everstep.runtime.net.token import token_reference
from everstep.runtime.platform import NodeRequest
from everstep.runtime.platform.kubernetes.pods import SHARED_MEMORY, THREADS, digest
from everstep.runtime.protocol.handover import NodeStart

HELD, UNTIL = "everstep/held-for", "everstep/held-until"
"""Label: the digest of the training's job. Annotation: Unix time of the pod's deadline."""
TRAINING_TOKEN = "EVERSTEP_TRAINING_TOKEN"
"""Variable of a checked pod: the token of the training that it may become a node of."""
LEAST_S = 10.0
"""A pod with less time left is not taken: it must have time to notice."""
_DIVISIBLE = ("cpu", "memory")
SAME_FIELDS = (
    "schedulerName", "priorityClassName", "nodeSelector", "runtimeClassName", "hostNetwork", "hostIPC",
    "shareProcessNamespace",
)  # fmt: skip
"""Of a pod's spec: a pod that has them otherwise is not what the training asks for."""
Pod = Mapping[str, Any]


def held_selector(job: str) -> str:
    """The label selector of pods that wait for that job."""
    return f"{HELD}={digest(job)}"


def hold(job: str, until: float) -> dict[str, Any]:
    """The patch that lets a checked pod wait for that job until then (Unix time)."""
    return {"metadata": {"labels": {HELD: digest(job)}, "annotations": {UNTIL: f"{until:.0f}"}}}


def token_variable(job: str) -> dict[str, Any]:
    """The variable that every pod has which may be held for that job; the Secret must exist."""
    return {**token_reference(job), "name": TRAINING_TOKEN}


def is_suitable(pod: Pod, pod_wish: Pod, request: NodeRequest, now: float) -> bool:
    """Whether the held pod is on a machine that the node may have, and has all that the wanted pod would have."""
    metadata, spec = pod["metadata"], pod["spec"]
    host = spec.get("nodeName") or ""
    if metadata.get("deletionTimestamp") or (pod.get("status") or {}).get("phase") != "Running":
        return False
    if float((metadata.get("annotations") or {}).get(UNTIL) or 0) < now + LEAST_S:
        return False
    if not host or host in request.avoid_hosts or request.host not in ("", host) or request.not_on == host:
        return False
    return _is_same(spec, pod_wish["spec"], request)


def _is_same(spec: Pod, pod_wish: Pod, request: NodeRequest) -> bool:
    if pod_wish.get("schedulingGates") or any(pod_wish.get(key) not in (None, spec.get(key)) for key in SAME_FIELDS):
        return False
    if any(toleration not in (spec.get("tolerations") or ()) for toleration in pod_wish.get("tolerations") or ()):
        return False
    has, wants = spec["containers"][0], pod_wish["containers"][0]
    return (
        has.get("image") == wants.get("image")
        and _variables(has).items() >= _variables(wants, {*request.environment, THREADS}).items()
        and _has_enough(_amounts(has), _amounts(wants))
        and _shared_memory(spec) >= _shared_memory(pod_wish)
    )


def _variables(container: Pod, without: Collection[str] = ()) -> dict[str, Any]:
    """The variables' values; None where they are taken from elsewhere."""
    return {
        variable["name"]: variable.get("value")
        for variable in container.get("env") or ()
        if variable["name"] not in without
    }


class _Amounts(NamedTuple):
    requests: dict[str, float]
    limits: dict[str, float]


def _amounts(container: Pod) -> _Amounts:
    """The API adds a request for each limit."""
    resources = container.get("resources") or {}
    limits = {name: quantity(amount) for name, amount in (resources.get("limits") or {}).items()}
    requests = {name: quantity(amount) for name, amount in (resources.get("requests") or {}).items()}
    return _Amounts({**limits, **requests}, limits)


def _has_enough(has: _Amounts, wants: _Amounts) -> bool:
    """At least as much CPU and memory, which a cluster's own defaults may have lowered; exactly as many devices."""
    enough = all(
        has.requests.get(name, 0) >= wants.requests.get(name, 0)
        and has.limits.get(name, math.inf) >= wants.limits.get(name, math.inf)
        for name in _DIVISIBLE
    )
    devices = [{name: count for name, count in amounts.items() if name not in _DIVISIBLE} for amounts in (*has, *wants)]
    return enough and devices[:2] == devices[2:]


def _shared_memory(spec: Pod) -> float:
    """The size of /dev/shm in bytes; 0: there is no volume for it."""
    mounts = spec["containers"][0].get("volumeMounts") or ()
    name = next((mount["name"] for mount in mounts if mount["mountPath"] == SHARED_MEMORY), "")
    volume = next((volume for volume in spec.get("volumes") or () if volume["name"] == name), {})
    limit = (volume.get("emptyDir") or {}).get("sizeLimit")
    return quantity(limit) if limit else 0


def adoption(pod: Pod, pod_wish: Pod) -> dict[str, Any]:
    """The patch that makes the held pod a node: the wanted pod's labels and annotations, and no longer held."""
    labels, annotations = pod_wish["metadata"]["labels"], pod_wish["metadata"]["annotations"]
    return {
        "metadata": {
            "uid": pod["metadata"]["uid"],
            "labels": {**labels, HELD: None},
            "annotations": {**annotations, UNTIL: None},
        }
    }


def start_of(pod: Pod, pod_wish: Pod, request: NodeRequest) -> NodeStart:
    """What the adopted pod is to run: the request, on the machine that the pod is on."""
    arguments = list(request.arguments)
    if not request.host and "--host" in arguments:
        arguments[arguments.index("--host") + 1] = pod["spec"]["nodeName"]
    threads = _variables(pod_wish["spec"]["containers"][0]).get(THREADS)
    return NodeStart(tuple(arguments), {**request.environment, **({THREADS: threads} if threads else {})})
