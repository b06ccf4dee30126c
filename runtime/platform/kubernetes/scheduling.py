"""What a cluster's scheduler is told of a job's pods: who comes first, and who only comes together. Pure.

After the documents of the schedulers: Volcano ("PodGroup", and the annotations `scheduling.k8s.io/group-name` and
`volcano.sh/preemptable`), Koordinator ("Gang Scheduling", its lightweight protocol by annotations; "Elastic Quota") and
the coscheduling plugin of Kubernetes' scheduler-plugins ("Coscheduling").
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from runtime.job.spec import JobSpec
from runtime.platform.kubernetes.pods import JOB, Owner, Pod, digest, secret_name

GROUP_NAME = "scheduling.k8s.io/group-name"
PREEMPTABLE = "volcano.sh/preemptable"
KOORDINATOR_NAME, KOORDINATOR_MINIMUM = (f"gang.scheduling.koordinator.sh/{key}" for key in ("name", "min-available"))
KOORDINATOR_QUEUE = "quota.scheduling.koordinator.sh/name"
COSCHEDULING_NAME = "scheduling.x-k8s.io/pod-group"


class Gang(StrEnum):
    """Whose scheduler admits the minimum of a job all at once or not at all."""

    NONE = "none"
    """Nobody's: pods come one by one, as Kubernetes' own scheduler finds room."""
    VOLCANO = "volcano"
    KOORDINATOR = "koordinator"
    COSCHEDULING = "coscheduling"


SCHEDULERS = {
    Gang.VOLCANO: "volcano", Gang.KOORDINATOR: "koord-scheduler", Gang.COSCHEDULING: "scheduler-plugins-scheduler",
}  # fmt: skip
"""The names under which these are installed by their own charts."""
GROUP_KINDS = {Gang.VOLCANO: "scheduling.volcano.sh/v1beta1", Gang.COSCHEDULING: "scheduling.x-k8s.io/v1alpha1"}
"""The API versions of their PodGroups; Koordinator needs none."""
QUEUES = (Gang.VOLCANO, Gang.KOORDINATOR)
"""Those that know queues."""


@dataclass(frozen=True)
class Scheduling:
    """Of one job."""

    gang: Gang = Gang.NONE
    queue: str = ""
    """Volcano's Queue, or Koordinator's ElasticQuota; "": the default one."""
    priority_class: str = ""
    """PriorityClass of the nodes of the minimum; "": as the step's own pod has it."""
    extra_priority_class: str = ""
    """PriorityClass of the nodes beyond it; "": as the others."""
    minimum: int = 1
    """Pods that come together."""


PLAIN = Scheduling()
"""As any pod."""


def minimum_of(spec: JobSpec) -> int:
    """The pods that a job cannot begin without: of roles that wait for others none, they are made later."""
    return sum(role.least for role in spec.roles.values() if not role.waits_for)


def group_of(scheduling: Scheduling, job: str, owner: Owner) -> dict[str, Any] | None:
    """The PodGroup that has to be there before the pods; None: this scheduler needs none."""
    if scheduling.gang not in GROUP_KINDS:
        return None
    spec: dict[str, Any] = {"minMember": scheduling.minimum}
    if scheduling.gang is Gang.VOLCANO:
        spec |= {"queue": scheduling.queue} if scheduling.queue else {}
        spec |= {"priorityClassName": scheduling.priority_class} if scheduling.priority_class else {}
    metadata = {"name": secret_name(job), "labels": {JOB: digest(job)}, "ownerReferences": [owner.reference()]}
    return {"apiVersion": GROUP_KINDS[scheduling.gang], "kind": "PodGroup", "metadata": metadata, "spec": spec}


def scheduled(pod: Pod, scheduling: Scheduling, job: str, extra: bool) -> Pod:
    """The pod as its scheduler has to see it; `extra`: beyond the minimum.

    Extras stand outside of the gang where its members must be of one priority, and are Volcano's to take back.
    """
    metadata, spec = dict(pod["metadata"]), dict(pod["spec"])
    labels, notes = dict(metadata["labels"]), dict(metadata["annotations"])
    group, member = secret_name(job), not extra
    wanted = (extra and scheduling.extra_priority_class) or scheduling.priority_class
    if wanted:
        spec["priorityClassName"] = wanted
    if scheduling.gang is not Gang.NONE:
        spec["schedulerName"] = SCHEDULERS[scheduling.gang]
    match scheduling.gang:
        case Gang.VOLCANO:
            notes |= {GROUP_NAME: group, PREEMPTABLE: str(extra).lower()}
        case Gang.KOORDINATOR:
            notes |= {KOORDINATOR_NAME: group, KOORDINATOR_MINIMUM: str(scheduling.minimum)} if member else {}
            labels |= {KOORDINATOR_QUEUE: scheduling.queue} if scheduling.queue else {}
        case Gang.COSCHEDULING:
            labels |= {COSCHEDULING_NAME: group} if member else {}
    return {**pod, "metadata": {**metadata, "labels": labels, "annotations": notes}, "spec": spec}
