"""Kubeflow's TFJob (kubeflow.org/v1): the roles chief, worker, ps and evaluator, which find TF_CONFIG.

After its documentation: a job has succeeded when its chief has, without a chief when its first worker has, with the
successPolicy AllWorkers when all workers have.
"""

from everstep.convert.field_reader import Fields
from everstep.convert.pods import read_pod
from everstep.convert.restarts import read_restarts
from everstep.convert.run_policy import read_run, read_scheduling
from everstep.convert.source import Role, SourceJob

_CONTAINER = "tensorflow"
"""The name of the container that its operator looks after."""
_REPLICAS, _RUN = ("spec", "tfReplicaSpecs"), ("spec", "runPolicy")
_ROLES = {"Chief": "chief", "Master": "chief", "Worker": "worker", "PS": "ps", "Evaluator": "evaluator"}
ALL = "AllWorkers"


def read(fields: Fields) -> SourceJob:
    """Raises ConvertError."""
    names = fields.keys(*_REPLICAS)
    if unknown := [name for name in names if name not in _ROLES]:
        raise fields.wrong(f"a TFJob has {', '.join(_ROLES)}", *_REPLICAS, unknown[0])
    if not names:
        raise fields.wrong("missing: Chief, Worker, PS", *_REPLICAS)
    success = fields.take(str, "spec", "successPolicy", default="")
    if success not in ("", ALL):
        raise fields.wrong(f"{success} is not supported; leave it out or use {ALL}", "spec", "successPolicy")
    has_chief = bool({"Chief", "Master"} & set(names))
    ends = {"chief": "All", "worker": "All" if success == ALL else "None" if has_chief else "Rank0"}
    roles = tuple(_role(fields, name, ends.get(_ROLES[name], "None")) for name in names)
    policies = {"frameworkType": "tensorflow"}
    if policy := fields.take(str, *_RUN, "cleanPodPolicy", default=""):
        policies["cleanPodPolicy"] = policy
    arguments: dict[str, object] = {**read_scheduling(fields, _RUN, sum(role.nodes for role in roles))}
    if fields.has(*_RUN, "backoffLimit"):
        arguments["max_relaunches"] = fields.count(*_RUN, "backoffLimit")
    return SourceJob(roles, arguments, policies, run=read_run(fields, *_RUN))


def _role(fields: Fields, name: str, ends: str) -> Role:
    path = (*_REPLICAS, name)
    nodes = fields.count(*path, "replicas", default=1, least=1)
    policies = {"completePolicy": ends, **read_restarts(fields, path, "Never")}
    return Role(_ROLES[name], nodes, nodes, read_pod(fields, (*path, "template"), _CONTAINER), policies=policies)
