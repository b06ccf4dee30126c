"""A node as a pod: the request for it, and what an ended pod tells. Pure.

After the Pod API of Kubernetes (fields `spec`, `status`) and its labels and annotations (`kubernetes.io/hostname`,
`controller.kubernetes.io/pod-deletion-cost`).
"""

import copy
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from everstep.runtime.job.pod_template import GRACE
from everstep.runtime.job.spec_values import quantity
from everstep.runtime.net.token import TOKEN_KEY, TOKEN_VARIABLE, token_reference, token_secret
from everstep.runtime.platform import STEP_LABEL, Node, NodeEnd, NodeRequest

JOB, NODE, ROLE, NAME = "everstep/job", "everstep/node", "everstep/role", "everstep/job-name"
"""Labels (the job as a digest, because its name may be too long), and the annotation with the job's name."""
STEP = {STEP_LABEL: "train"}
"""A node's pod has the label of its step."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
FIRST_TO_GO, LAST_TO_GO = "-100", "100"
"""Deletion costs of a node beyond the minimum, and of a node of the minimum."""
HOST, IP, HOST_IP, ZONE = "EVERSTEP_HOST", "EVERSTEP_IP", "EVERSTEP_HOST_IP", "EVERSTEP_ZONE"
"""Variables: the host that the scheduler chose, the pod's address, its machine's address, and its machine's zone."""
HOST_LABEL, ZONE_LABEL = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
"""Of machines. From Kubernetes 1.35 on a pod gets its machine's ZONE_LABEL when it is placed (PodTopologyLabels)."""
AGENT_CONTAINER = "agent"
THREADS = "OMP_NUM_THREADS"
OOM_KILLED = 247
"""The exit code for out of memory in the table of faults; the killed container itself ends with 137 or 0."""
COMMAND = ("python", "-m", "everstep.runtime.agent")
ARGO_MOUNTS = ("/argo", "/var/run/argo", "/mainctrfs")
"""Folders that only Argo's own containers need."""
KEPT_FIELDS = (
    "imagePullSecrets", "securityContext", "nodeSelector", "tolerations", "schedulerName", "runtimeClassName",
    "serviceAccountName", "priorityClassName", "dnsPolicy", "dnsConfig", "hostAliases", "affinity",
    "topologySpreadConstraints",
)  # fmt: skip
KEPT_CONTAINER_FIELDS = ("image", "imagePullPolicy", "envFrom", "resources", "securityContext", "workingDir")
SHARED_MEMORY = "/dev/shm"
GRACE_S = 10
"""Grace period of a pod that the master no longer needs, in seconds."""
NOTICE_S = 25
"""Grace period when anybody else ends the pod, unless its role's template says another one: the agent has 20 s to hand
over its state, then some to exit."""
_EXIT_S = 5
"""How much of a template's grace period is left for the exit; of a short one a fifth."""
MOST_PREFERRED = 100
"""A longer list of machines to prefer would make each pod's manifest long, and is not given."""
GATE = "everstep/minimum"
"""Keeps an extra from being placed before the gang, whose room it might take."""
KUEUE_GATE = "kueue.x-k8s.io/admission"
CANNOT_START_REASONS = (
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
    "CreateContainerError", "RunContainerError",
)  # fmt: skip
"""Reasons of a waiting container that somebody has to fix."""
EVICTED_REASONS = ("PreemptionByScheduler", "EvictionByEvictionAPI")
"""Reasons of the condition DisruptionTarget (Kubernetes, "Disruptions") that are nobody's fault."""
KUEUE_STOPPED = "TerminationTarget"
"""Condition that Kueue gives a pod when it takes its quota back."""
Pod = dict[str, Any]


@dataclass(frozen=True)
class Owner:
    """The Workflow: deleting it deletes everything that it owns."""

    name: str
    uid: str

    def reference(self) -> dict[str, Any]:
        """The entry for `metadata.ownerReferences`. It does not block the owner's deletion."""
        return {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": self.name, "uid": self.uid}


def digest(job: str) -> str:
    """The job's name as a digest, for labels and names."""
    return hashlib.sha256(job.encode()).hexdigest()[:12]


def selector(job: str) -> str:
    """The label selector of the job's pods."""
    return f"{JOB}={digest(job)}"


def pod_name(job: str, owner: Owner, node: str) -> str:
    """The pod's name: always the same for a node of a job, at most 63 characters because it is also the host name.

    Raises ValueError for a node's name that no pod can have.
    """
    tail = f"-{digest(job)[:8]}-{node}"
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", node):
        raise ValueError(f"{node!r} cannot be a pod's name: at most 42 characters of a-z, 0-9 and -")
    return owner.name.replace(".", "-")[: 63 - len(tail)].rstrip("-") + tail


def object_name(job: str) -> str:
    """Name of the job's ConfigMap, and of its groups."""
    return f"everstep-{digest(job)}"


def secret_of(job: str, owner: Owner, token: str) -> dict[str, Any]:
    """The Secret with the job's token."""
    metadata = {
        "name": token_secret(job), "labels": {JOB: digest(job)}, "annotations": {NAME: job},
        "ownerReferences": [owner.reference()],
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {TOKEN_KEY: token}}


def template_of(step: Pod) -> dict[str, Any]:
    """A pod spec for nodes, from the train step's own pod: its image, store credentials, memory, placement.

    What Argo added for itself is left out, and so is the service account's token: a node calls no API.
    """
    spec = step["spec"]
    main = next((candidate for candidate in spec["containers"] if candidate["name"] == "main"), spec["containers"][0])
    mounts = [
        mount
        for mount in main.get("volumeMounts") or ()
        if not mount["mountPath"].startswith((*ARGO_MOUNTS, "/var/run/secrets/kubernetes.io"))
    ]
    mounted_names = {mount["name"] for mount in mounts}
    container = {
        "name": AGENT_CONTAINER,
        **{key: main[key] for key in KEPT_CONTAINER_FIELDS if key in main},
        "env": [variable for variable in main.get("env") or () if not variable["name"].startswith("ARGO_")],
        "volumeMounts": mounts,
    }
    volumes = [volume for volume in spec.get("volumes") or () if volume["name"] in mounted_names]
    return copy.deepcopy(
        {**{key: spec[key] for key in KEPT_FIELDS if key in spec}, "containers": [container], "volumes": volumes}
    )


def with_shared_memory(template: Mapping[str, Any], needed_bytes: int) -> dict[str, Any]:
    """The pod spec with at least `needed_bytes` bytes of /dev/shm.

    The memory limit grows by as much, because /dev/shm counts as memory. A template without such a volume, or without a
    limit of it, is unchanged.
    """
    first, *others = template["containers"]
    name = next((mount["name"] for mount in first.get("volumeMounts") or () if mount["mountPath"] == SHARED_MEMORY), "")
    volume = next((volume for volume in template.get("volumes") or () if volume["name"] == name), {})
    limit = (volume.get("emptyDir") or {}).get("sizeLimit")
    more = needed_bytes - int(quantity(limit)) if limit else 0
    if more <= 0:
        return dict(template)
    larger = {**volume, "emptyDir": {**volume["emptyDir"], "sizeLimit": str(needed_bytes)}}
    resources = {
        kind: {**amounts, "memory": str(int(quantity(amounts["memory"])) + more)} if "memory" in amounts else amounts
        for kind, amounts in (first.get("resources") or {}).items()
    }
    volumes = [larger if current is volume else current for current in template["volumes"]]
    return {**template, "containers": [{**first, "resources": resources}, *others], "volumes": volumes}


def pod_of(request: NodeRequest, job: str, owner: Owner, template: Mapping[str, Any]) -> Pod:
    """The pod for that node; it runs an agent unless the template has a command. It only refers to the job's token.

    Raises ValueError, see `pod_name`.
    """
    spec = copy.deepcopy(dict(template))
    first, *others = spec["containers"]
    texts = {key: {"name": key, "value": _escape(value)} for key, value in request.environment.items()}
    variables: dict[str, dict[str, Any]] = {**texts, TOKEN_VARIABLE: token_reference(job)}
    fields = {
        HOST: "spec.nodeName", IP: "status.podIP", HOST_IP: "status.hostIP", ZONE: f"metadata.labels['{ZONE_LABEL}']",
    }  # fmt: skip
    for name, field in fields.items():
        variables[name] = {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}
    template_variables = [variable for variable in first.get("env") or () if variable["name"] not in variables]
    notice = [] if first.get("command") else _notice(spec)
    first |= {"command": first.get("command") or list(COMMAND), "args": [*notice, *_arguments(request)]}
    first["env"] = [*template_variables, *variables.values()]
    resources = first.get("resources") or {}
    first["resources"] = _resources(request, resources)
    if threads := _threads(request, first["resources"]):
        variables_set = {variable["name"] for variable in first["env"]}
        first["env"] += [{"name": THREADS, "value": threads}] if THREADS not in variables_set else []
    spec |= {
        "containers": [first, *others], "volumes": _shared_memory(spec, resources, first), "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        GRACE: NOTICE_S if spec.get(GRACE) is None else spec[GRACE],
    }  # fmt: skip
    spec |= _apart(spec, request, job)
    if terms := _host_terms(request):
        spec["affinity"] = _with_terms(spec.get("affinity") or {}, terms)
    metadata = {
        "name": pod_name(job, owner, request.name),
        "labels": {JOB: digest(job), NODE: request.name, ROLE: request.role, **STEP},
        "annotations": {NAME: job, DELETION_COST: FIRST_TO_GO if request.extra else LAST_TO_GO},
        "ownerReferences": [owner.reference()],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _threads(request: NodeRequest, resources: Mapping[str, Any]) -> str:
    """How many threads each worker may have of the pod's cores; empty if it does not say how many these are.

    Without it a pod of 2 cores on a machine of 64 starts 64 threads.
    """
    cores = float(quantity({**resources["requests"], **resources["limits"]}.get("cpu", 0)))
    arguments = list(request.arguments)
    workers = int(arguments[arguments.index("--slots") + 1]) if "--slots" in arguments else 1
    return str(max(1, int(cores) // workers)) if cores else ""


def _arguments(request: NodeRequest) -> list[str]:
    """The agent's arguments; `--host`, unless requested, is the host that the scheduler chooses."""
    arguments = [_escape(argument) for argument in request.arguments]
    if not request.host and "--host" in arguments:
        arguments[arguments.index("--host") + 1] = f"$({HOST})"
    return arguments


def _notice(spec: Mapping[str, Any]) -> list[str]:
    """The agent's flag for the grace period that its role's template asks for."""
    if spec.get(GRACE) is None:
        return []
    return ["--notice", f"{max(spec[GRACE] - _EXIT_S, 0.8 * spec[GRACE]):g}"]


def _escape(text: str) -> str:
    """Escape `$`: Kubernetes expands `$(NAME)` and `$$` in arguments and variables."""
    return text.replace("$", "$$")


def _resources(request: NodeRequest, template_resources: Mapping[str, Any]) -> dict[str, Any]:
    """The template's resources, overridden by those in the job's spec for this node."""
    requests, limits = dict(template_resources.get("requests") or {}), dict(template_resources.get("limits") or {})
    want = request.resources
    if want.cpu:
        requests["cpu"] = f"{want.cpu:g}"
        limits.pop("cpu", None)
    if want.memory_bytes:
        requests["memory"] = limits["memory"] = str(want.memory_bytes)
    for name, count in want.others.items():
        requests[name] = limits[name] = f"{count:g}"
    return {"requests": requests, "limits": limits}


def _shared_memory(
    spec: Mapping[str, Any], resources_of_containers: Mapping[str, Any], agent: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The volumes, with /dev/shm scaled as the node's memory is: it counts as memory and holds the staged state."""
    volumes: list[dict[str, Any]] = list(spec.get("volumes") or ())
    before, now = (
        float(quantity((resources.get("limits") or {}).get("memory", 0)))
        for resources in (resources_of_containers, agent["resources"])
    )
    name = next((mount["name"] for mount in agent.get("volumeMounts") or () if mount["mountPath"] == SHARED_MEMORY), "")
    if not before or now <= before:
        return volumes
    return [_scale_volume(volume, now / before) if volume["name"] == name else volume for volume in volumes]


def _scale_volume(volume: dict[str, Any], times: float) -> dict[str, Any]:
    empty_dir = volume.get("emptyDir") or {}
    if "sizeLimit" not in empty_dir:
        return volume
    return {**volume, "emptyDir": {**empty_dir, "sizeLimit": str(int(quantity(empty_dir["sizeLimit"]) * times))}}


def _apart(spec: Mapping[str, Any], request: NodeRequest, job: str) -> dict[str, Any]:
    """What keeps the job's pods on machines apart, and in zones apart, where there is room; after the given wishes.

    The zone is a wish of affinity, not of spread: the scheduler scores a wish of spread only on machines that have the
    labels of all of them, and many have no zone. A node that moves away from a machine wishes nothing but that, as the
    other wishes would lead it back.
    """
    affinity = dict(spec.get("affinity") or {})
    job_pods = {"matchLabels": {JOB: digest(job)}}
    if request.not_on:
        term = {"matchExpressions": [{"key": HOST_LABEL, "operator": "NotIn", "values": [request.not_on]}]}
        wish = {"weight": 100, "preference": term}
        return {"affinity": {**affinity, "nodeAffinity": _with_wish(affinity.get("nodeAffinity"), wish)}}
    wish = {"weight": 50, "podAffinityTerm": {"labelSelector": job_pods, "topologyKey": ZONE_LABEL}}
    spread = {"maxSkew": 1, "topologyKey": HOST_LABEL, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": job_pods}
    constraints = list(spec.get("topologySpreadConstraints") or ())
    own = [] if any(constraint.get("topologyKey") == HOST_LABEL for constraint in constraints) else [spread]
    affinity["podAntiAffinity"] = _with_wish(affinity.get("podAntiAffinity"), wish)
    if 0 < len(request.prefer_hosts) <= MOST_PREFERRED:
        term = {"matchExpressions": [{"key": HOST_LABEL, "operator": "In", "values": list(request.prefer_hosts)}]}
        affinity["nodeAffinity"] = _with_wish(affinity.get("nodeAffinity"), {"weight": 20, "preference": term})
    return {
        "affinity": affinity,
        "topologySpreadConstraints": [*constraints, *own],
    }


def _with_wish(affinity_terms: Mapping[str, Any] | None, wish: Mapping[str, Any]) -> dict[str, Any]:
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    return {**(affinity_terms or {}), preferred: [*((affinity_terms or {}).get(preferred) or ()), wish]}


def _host_terms(request: NodeRequest) -> list[dict[str, Any]]:
    """Requirements for the host: the requested one, and none of those to avoid."""
    terms = [{"key": HOST_LABEL, "operator": "In", "values": [request.host]}] if request.host else []
    hosts_avoided = sorted(set(request.avoid_hosts) - {request.host})
    return [*terms, *([{"key": HOST_LABEL, "operator": "NotIn", "values": hosts_avoided}] if hosts_avoided else [])]


def _with_terms(affinity: Mapping[str, Any], terms: list[dict[str, Any]]) -> dict[str, Any]:
    """The affinity, with these terms added to each of its alternatives."""
    required_key = "requiredDuringSchedulingIgnoredDuringExecution"
    node = dict(affinity.get("nodeAffinity") or {})
    before = (node.get(required_key) or {}).get("nodeSelectorTerms") or [{}]
    both = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *terms]} for term in before]
    return {**affinity, "nodeAffinity": {**node, required_key: {"nodeSelectorTerms": both}}}


def node_of(pod: Pod) -> Node:
    """The node that the pod is."""
    labels = pod["metadata"].get("labels") or {}
    return Node(labels.get(NODE, ""), pod["metadata"]["uid"], labels.get(ROLE, ""), pod["spec"].get("nodeName") or "")


def has_ended(pod: Pod) -> bool:
    """Whether no container of the pod runs, or ever will again."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def waiting_reason(pod: Pod) -> str:
    """Why the pod does not start, if it says so; "": it has started, or nothing is in its way."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in CANNOT_START_REASONS:
            return f"its container cannot start, {waiting['reason']}: {_one_line(waiting.get('message'))}".rstrip(": ")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            if condition.get("reason") == "SchedulingGated":
                if GATE in gates_of(pod):
                    return "it gets a machine after the nodes of the minimum"
                return "it waits for quota of its queue"
            return f"no machine has room for its pod: {_one_line(condition.get('message'))}".rstrip(": ")
    return ""


def is_overlooked(pod: Pod) -> bool:
    """Whether no scheduler has placed or refused the pod yet. Each writes the condition PodScheduled, or a node's name
    (Kubernetes: "Pod Lifecycle", "Configure Multiple Schedulers")."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return not pod["spec"].get("nodeName") and all(condition.get("type") != "PodScheduled" for condition in conditions)


def gates_of(pod: Pod) -> list[str]:
    """What keeps the pod from being scheduled."""
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]


def _one_line(message: str | None) -> str:
    return (message or "").partition("\n")[0]


def was_evicted(pod: Pod) -> bool:
    """Whether the pod was preempted for a more important one, or evicted (a drain, an autoscaler, a queue's quota)."""
    conditions = [
        condition
        for condition in (pod.get("status") or {}).get("conditions") or ()
        if condition.get("status") == "True"
    ]
    disrupted = [condition for condition in conditions if condition.get("type") == "DisruptionTarget"]
    is_stopped = any(condition.get("type") == KUEUE_STOPPED for condition in conditions)
    return is_stopped or any(condition.get("reason") in EVICTED_REASONS for condition in disrupted)


def end_of_pod(pod: Pod, otherwise: str) -> NodeEnd:
    """How the pod ended, if it tells; `otherwise` is the reason for a pod that had not ended when last seen."""
    return msgspec.structs.replace(_exit_of(pod, otherwise), gave_way=was_evicted(pod))


def _exit_of(pod: Pod, otherwise: str) -> NodeEnd:
    status = pod.get("status") or {}
    node = node_of(pod)
    dead = [
        container["state"]["terminated"]
        for container in status.get("containerStatuses") or ()
        if "terminated" in (container.get("state") or {})
    ]
    code = int(dead[0].get("exitCode", 0)) if dead else None
    if any(end.get("reason") == "OOMKilled" for end in dead):
        return NodeEnd(node.name, node.uid, OOM_KILLED, "its container ran out of memory (OOMKilled)")
    if reason := status.get("reason"):
        reason_text = f"{reason}: {_one_line(status.get('message'))}".rstrip(": ")
        return NodeEnd(node.name, node.uid, None, f"its pod ended, {reason_text}")
    if code is not None and has_ended(pod):
        return NodeEnd(node.name, node.uid, code, f"its agent ended with exit code {code}")
    return NodeEnd(node.name, node.uid, code, otherwise or "its pod ended")
