"""Nodes that are pods, made by the train step's pod in the namespace where it runs.

The story begins in `platform` (the Platform of a job); `pods` says what a pod of ours looks like and what one that
ended tells (pure), `scheduling` what its scheduler is told (pure; `groups` makes the PodGroups that some want), `known`
what the API has told so far (pure), `api` asks it, `workflow` is whom all belongs to, `switches` where machines hang in
the network, `sizes` how somebody scales the job, `taints` how unfit machines are marked.
The few requests needed are plain HTTP by aiohttp, after Kubernetes' API concepts ("Efficient
detection of changes", "Resource versions").
"""

from everstep.runtime.platform.kubernetes.api import Access, KubeApi, KubeError
from everstep.runtime.platform.kubernetes.groups import delete_groups, ensure_groups
from everstep.runtime.platform.kubernetes.platform import KubernetesPlatform
from everstep.runtime.platform.kubernetes.pods import Owner, template_of, with_shared_memory
from everstep.runtime.platform.kubernetes.scheduling import Scheduling, minimum_of
from everstep.runtime.platform.kubernetes.sizes import ensure_sizes, watch_sizes
from everstep.runtime.platform.kubernetes.switches import read_topology
from everstep.runtime.platform.kubernetes.workflow import is_over_for_good, owner_of, read_deadline

__all__ = [
    "Access",
    "KubeApi",
    "KubeError",
    "KubernetesPlatform",
    "Owner",
    "Scheduling",
    "delete_groups",
    "ensure_groups",
    "ensure_sizes",
    "is_over_for_good",
    "minimum_of",
    "owner_of",
    "read_deadline",
    "read_topology",
    "template_of",
    "watch_sizes",
    "with_shared_memory",
]  # fmt: skip
