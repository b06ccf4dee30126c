"""Kubeflow's PyTorchJob (kubeflow.org/v1), with or without elasticPolicy. Master and Worker nodes run the same command:
they become one role, whose first node is rank 0."""

from everstep.convert.field_reader import Fields
from everstep.convert.pods import read_pod
from everstep.convert.source import Role, SourceJob

_REPLICAS, _ELASTIC, _RUN = ("spec", "pytorchReplicaSpecs"), ("spec", "elasticPolicy"), ("spec", "runPolicy")


def read(fields: Fields) -> SourceJob:
    """Raises ConvertError."""
    names = fields.keys(*_REPLICAS)
    if unknown := [name for name in names if name not in ("Master", "Worker")]:
        raise fields.wrong("a PyTorchJob has Master and Worker", *_REPLICAS, unknown[0])
    if not names:
        raise fields.wrong("missing: Master or Worker", *_REPLICAS)
    counts = {name: fields.count(*_REPLICAS, name, "replicas", default=1) for name in names}
    nodes = fields.count(*_ELASTIC, "maxReplicas", default=fields.count(*_ELASTIC, "max", default=sum(counts.values())))
    least = fields.count(*_ELASTIC, "min", default=nodes, most=nodes)
    least = fields.count(*_ELASTIC, "minReplicas", default=least, most=nodes)
    pods = {name: read_pod(fields, (*_REPLICAS, name, "template")) for name in names}
    for name in names:
        fields.skip(*_REPLICAS, name, "restartPolicy")
    policy = fields.take(str, *_RUN, "cleanPodPolicy", default="")
    policies = {"cleanPodPolicy": policy} if policy else {}
    arguments: dict[str, object] = {}
    for path, argument in (((*_ELASTIC, "maxRestarts"), "max_restarts"), ((*_RUN, "backoffLimit"), "max_relaunches")):
        if fields.has(*path):
            arguments[argument] = fields.count(*path)
    for name in ("rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId"):
        fields.skip(*_ELASTIC, name)
    slots = fields.count(*_ELASTIC, "nProcPerNode", default=_slots(fields))
    role = Role("worker", nodes, least, pods.get("Worker") or pods["Master"], slots)
    return SourceJob(fields.take(str, "metadata", "name"), (role,), arguments, policies)


def _slots(fields: Fields) -> int:
    """Workers per node; 1 where it is left to the devices of the node."""
    path = ("spec", "nprocPerNode")
    if fields.text_at(*path) in ("auto", "cpu", "gpu"):
        fields.skip(*path)
        return 1
    return fields.count(*path, default=1, least=1)
