"""KubeRay's RayJob (ray.io/v1): its entrypoint as the script of a training on the nodes of its worker groups.

A script that drives Ray itself (ray.train, ray.remote) needs a Ray cluster, which an Everstep job is not."""

from dataclasses import replace

from everstep.convert.field_reader import Fields
from everstep.convert.pods import read_pod
from everstep.convert.source import Role, SourceJob

_GROUPS = ("spec", "rayClusterSpec", "workerGroupSpecs")


def read(fields: Fields) -> SourceJob:
    """Raises ConvertError."""
    count = fields.length(*_GROUPS)
    if not count:
        raise fields.wrong("missing: at least one group of workers", *_GROUPS)
    command = ("sh", "-c", fields.take(str, "spec", "entrypoint"))  # As Ray starts it.
    roles = []
    for number in range(count):
        path = (*_GROUPS, number)
        nodes = fields.count(*path, "replicas", default=1, least=1)
        pod = replace(read_pod(fields, (*path, "template")), command=command)
        group = fields.take(str, *path, "groupName", default="worker")
        name = group if count > 1 else "worker"
        least = max(1, fields.count(*path, "minReplicas", default=nodes, most=nodes))
        most = fields.count(*path, "maxReplicas", default=nodes, least=nodes)
        roles.append(Role(name, nodes, least, pod, policies={"maxReplicas": most} if most > nodes else {}))
    if fields.has("spec", "backoffLimit"):
        return SourceJob(tuple(roles), {"max_relaunches": fields.count("spec", "backoffLimit")})
    return SourceJob(tuple(roles))
