"""Nodes that are pods, created by the train step's pod in its own namespace.

The story begins in `platform` (the Platform of a job). Pure modules: `pods` (what a node's pod looks like, and what an
ended one says), `scheduling` (what the scheduler is told), `known_pods` (what the API has said so far) and `held_pods`
(which checked pods become nodes). `groups` creates the PodGroups that some schedulers need, `api` talks to the API,
`workflow` is the owner of everything, `switches` reads the network's topology, `sizes` lets somebody resize the job,
`taints` marks unfit machines. The few requests are plain HTTP with aiohttp, after Kubernetes' API concepts ("Efficient
detection of changes", "Resource versions").
"""

from everstep.runtime.platform.kubernetes.api import Access, KubeApi, KubeError
from everstep.runtime.platform.kubernetes.groups import delete_groups, ensure_groups
from everstep.runtime.platform.kubernetes.platform import KubernetesPlatform, PodRules
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
    "PodRules",
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
