"""DLRover's ElasticJob (elastic.iml.github.io/v1alpha1)."""

from dataclasses import replace

from everstep.convert.field_reader import Fields
from everstep.convert.pods import read_pod
from everstep.convert.source import Role, SourceJob
from everstep.runtime.job.spec import TENSORFLOW_ROLES

ENDLESS = ("ps", "evaluator")
"""Roles whose commands serve until the others have finished."""
STRATEGIES = ("AllreduceStrategy", "ParameterServerStrategy")
MASTER = "dlrover-master"
SINGLE = "single-job"
ALWAYS = "Always"
"""The restartPolicy of pods under which DLRover replaces a node whose program fails (K8sJobArgs.relaunch_always)."""
_NOT_ALWAYS = (
    "DLRover leaves out a node whose program fails again and again; here it moves to another machine; nearest: "
    "restartPolicy: OnNodeFail in a job spec, which leaves it out at its first failure"
)


def read(fields: Fields) -> SourceJob:
    """Raises ConvertError."""
    strategy = fields.take(str, "spec", "distributionStrategy", default=STRATEGIES[0])
    if strategy not in STRATEGIES:
        raise fields.wrong(
            f"{strategy} is not supported; use {' or '.join(STRATEGIES)}", "spec", "distributionStrategy"
        )
    if fields.take(str, "spec", "optimizeMode", default=SINGLE) != SINGLE:
        fields.note(f"no counterpart; nearest: {SINGLE}, each job by itself", "spec", "optimizeMode")
    names = [name for name in fields.keys("spec", "replicaSpecs") if name != MASTER]
    if not names:
        raise fields.wrong("missing: at least one role, such as worker", "spec", "replicaSpecs")
    paths = [
        ("spec", "replicaSpecs", name, spelling)
        for name in names
        for spelling in ("restartCount", "restartCounts")
        if fields.has("spec", "replicaSpecs", name, spelling)
    ]
    counts = [fields.count(*path) for path in paths]
    for path, count in zip(paths, counts, strict=True):
        if count < max(counts):
            fields.note(f"no counterpart; nearest: --max-relaunches {max(counts)}, that of every role", *path)
    roles = tuple(_role(fields, name) for name in names)
    # DLRover gives the roles of this strategy TF_CONFIG.
    has_tasks = strategy == STRATEGIES[1] and set(names) <= set(TENSORFLOW_ROLES)
    policies = {"frameworkType": "tensorflow"} if has_tasks else {}
    if policies:
        servers = {"policies": {"completePolicy": "None"}}
        roles = tuple(replace(role, **servers) if role.name in ENDLESS else role for role in roles)
    arguments = {"max_relaunches": max(counts)} if counts else {}
    return SourceJob(roles, arguments, policies)


def _role(fields: Fields, name: str) -> Role:
    path = ("spec", "replicaSpecs", name)
    nodes = fields.count(*path, "replicas", default=1, least=1)
    policy = (*path, "template", "spec", "restartPolicy")
    if fields.take(str, *policy, default=ALWAYS) != ALWAYS:
        fields.note(_NOT_ALWAYS, *policy)
    return Role(name, nodes, nodes, read_pod(fields, (*path, "template")))
