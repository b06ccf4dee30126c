"""What a cluster's scheduler is told about a job's pods: their priority, and which must come together. Pure.

After the documents of the schedulers: Volcano ("PodGroup", and the annotations `scheduling.k8s.io/group-name` and
`volcano.sh/preemptable`), Koordinator ("Gang Scheduling", its lightweight protocol by annotations; "Elastic Quota") and
the coscheduling plugin of Kubernetes' scheduler-plugins ("Coscheduling"), Kueue ("Run A Group Of Pods"). Kubernetes'
own: "Pod Scheduling Readiness".
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from everstep.runtime.job.spec import JobSpec
from everstep.runtime.platform.gang import Gang
from everstep.runtime.platform.kubernetes.pods import (
    DELETION_COST,
    FIRST_TO_GO,
    GATE,
    JOB,
    KUEUE_GATE,
    ROLE,
    Owner,
    Pod,
    digest,
    gates_of,
    object_name,
)

GROUP_NAME = "scheduling.k8s.io/group-name"
PREEMPTABLE = "volcano.sh/preemptable"
KOORDINATOR_NAME, KOORDINATOR_MINIMUM = (f"gang.scheduling.koordinator.sh/{key}" for key in ("name", "min-available"))
KOORDINATOR_QUEUE = "quota.scheduling.koordinator.sh/name"
KUEUE = "kueue.x-k8s.io"
KUEUE_QUEUE, KUEUE_MANAGED = f"{KUEUE}/queue-name", f"{KUEUE}/managed"
KUEUE_GROUP, KUEUE_COUNT = f"{KUEUE}/pod-group-name", f"{KUEUE}/pod-group-total-count"
KUEUE_ROLE = f"{KUEUE}/role-hash"
"""Pods of one role count as alike, also a replacement that must avoid a host, which Kueue's own hash tells apart."""
COSCHEDULING_NAME = "scheduling.x-k8s.io/pod-group"
SCHEDULERS = {
    Gang.VOLCANO: "volcano", Gang.KOORDINATOR: "koord-scheduler", Gang.COSCHEDULING: "scheduler-plugins-scheduler",
}  # fmt: skip
"""The schedulers' names as their own charts install them."""
GROUP_KINDS = {Gang.VOLCANO: "scheduling.volcano.sh/v1beta1", Gang.COSCHEDULING: "scheduling.x-k8s.io/v1alpha1"}
"""The API versions of their PodGroups; Koordinator needs none."""


@dataclass(frozen=True)
class Scheduling:
    """Scheduling of one job."""

    gang: Gang = Gang.NONE
    queue: str = ""
    """Volcano's Queue, Koordinator's ElasticQuota, or Kueue's LocalQueue; "": the default one."""
    priority_class: str = ""
    """PriorityClass of the nodes of the minimum; "": that of the step's own pod."""
    extra_priority_class: str = ""
    """PriorityClass of the nodes beyond the minimum; "": the same."""
    minimum: int = 1
    """Pods that must come together."""
    later: tuple[str, ...] = ()
    """Roles whose pods come after those: they wait for other roles."""


PLAIN = Scheduling()
"""Scheduling of an ordinary pod."""


def minimum_of(spec: JobSpec) -> int:
    """The number of pods that a job needs to begin. Roles that wait for others do not count: their pods come later."""
    return sum(role.least for role in spec.roles.values() if not role.waits_for)


def groups_of(scheduling: Scheduling, job: str, owner: Owner) -> list[dict[str, Any]]:
    """The PodGroups to create before the pods; empty: this scheduler needs none.

    Volcano preempts by the PriorityClass of the group, not of the pod. So extras have a group of their own, of which
    any number may run.
    """
    if scheduling.gang not in GROUP_KINDS:
        return []
    groups = [_group(scheduling, job, owner, extra=False)]
    if scheduling.gang is Gang.VOLCANO:
        groups.append(_group(scheduling, job, owner, extra=True))
    return groups


def _group(scheduling: Scheduling, job: str, owner: Owner, extra: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {"minMember": 0 if extra else scheduling.minimum}
    if scheduling.gang is Gang.VOLCANO:
        priority_class = _priority_class(scheduling, extra)
        spec |= {"queue": scheduling.queue} if scheduling.queue else {}
        spec |= {"priorityClassName": priority_class} if priority_class else {}
    metadata = {
        "name": group_name(job, extra), "labels": {JOB: digest(job)}, "ownerReferences": [owner.reference()],
    }  # fmt: skip
    return {"apiVersion": GROUP_KINDS[scheduling.gang], "kind": "PodGroup", "metadata": metadata, "spec": spec}


def group_name(job: str, extra: bool = False) -> str:
    """Name of the PodGroup of the minimum, or of the extras."""
    return f"{object_name(job)}-extra" if extra else object_name(job)


def _priority_class(scheduling: Scheduling, extra: bool) -> str:
    return (scheduling.extra_priority_class if extra else "") or scheduling.priority_class


def with_scheduling(pod: Pod, scheduling: Scheduling, job: str, extra: bool) -> Pod:
    """The pod as its scheduler needs it; `extra`: beyond the minimum.

    Extras are outside the gang, whose members have one priority, and Volcano may preempt them.
    """
    metadata, spec = dict(pod["metadata"]), dict(pod["spec"])
    labels, notes = dict(metadata["labels"]), dict(metadata["annotations"])
    group, member = group_name(job), not extra
    if priority_class := _priority_class(scheduling, extra):
        spec["priorityClassName"] = priority_class
    if scheduling.gang in SCHEDULERS:
        spec["schedulerName"] = SCHEDULERS[scheduling.gang]
    if scheduling.gang is not Gang.NONE and extra:
        kueue = [KUEUE_GATE] if scheduling.gang is Gang.KUEUE else []  # Gates can only be taken away later.
        spec["schedulingGates"] = [{"name": name} for name in (GATE, *kueue)]
    match scheduling.gang:
        case Gang.VOLCANO:
            notes |= {GROUP_NAME: group_name(job, extra), PREEMPTABLE: str(extra).lower()}
        case Gang.KOORDINATOR:
            notes |= {KOORDINATOR_NAME: group, KOORDINATOR_MINIMUM: str(scheduling.minimum)} if member else {}
            labels |= {KOORDINATOR_QUEUE: scheduling.queue} if scheduling.queue else {}
        case Gang.COSCHEDULING:
            labels |= {COSCHEDULING_NAME: group} if member else {}
        case Gang.KUEUE if member:
            labels |= {KUEUE_QUEUE: scheduling.queue}
            if labels[ROLE] not in scheduling.later:  # Of pods beyond the count Kueue deletes the newest.
                labels |= {KUEUE_GROUP: group}
                notes |= {KUEUE_COUNT: str(scheduling.minimum), KUEUE_ROLE: labels[ROLE]}
    return {**pod, "metadata": {**metadata, "labels": labels, "annotations": notes}, "spec": spec}


def extras_to_admit(pods: Collection[Pod], scheduling: Scheduling) -> list[Pod]:
    """The extras whose gate must open now: all of them, as soon as the whole minimum has machines."""
    gated = [pod for pod in pods if GATE in gates_of(pod)]
    placed_pods = [pod for pod in pods if pod["spec"].get("nodeName") and not _is_extra(pod)]
    return gated if len(placed_pods) >= scheduling.minimum else []


def admission_of_extra(scheduling: Scheduling) -> dict[str, Any]:
    """The patch that opens an extra's gate. Kueue gets to know the extra only now, so that it takes no quota from the
    minimum; its own gate stays until it admits the extra as a workload of its own.
    """
    if scheduling.gang is not Gang.KUEUE:
        return {"spec": {"schedulingGates": None}}
    labels = {KUEUE_QUEUE: scheduling.queue, KUEUE_MANAGED: "true"}
    return {"metadata": {"labels": labels}, "spec": {"schedulingGates": [{"name": KUEUE_GATE}]}}


def _is_extra(pod: Pod) -> bool:
    return (pod["metadata"].get("annotations") or {}).get(DELETION_COST) == FIRST_TO_GO
