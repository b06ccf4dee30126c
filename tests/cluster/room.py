"""Room on a machine: a resource that only tests' pods ask for, so that who finds room hangs on nothing else."""

import json

from tests.cluster.layout import node_name
from tests.cluster.lifecycle import Cluster

SLOT = "everstep.example/slot"


def room(cluster: Cluster, node: int, slots: int) -> None:
    """The machine has so many, after "Advertise Extended Resources for a Node" of Kubernetes' tasks."""
    key = SLOT.replace("/", "~1")
    paths = [f"/status/{part}/{key}" for part in ("capacity", "allocatable")]
    change = [{"op": "add", "path": path, "value": str(slots)} for path in paths]
    cluster.kubectl("patch", "node", node_name(node), "--subresource=status", "--type=json", "-p", json.dumps(change))
