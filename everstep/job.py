"""A job in Python: what `train.task(job_spec=...)` takes, with the names and defaults of the YAML's fields.

    from everstep.job import JobSpec, Resources, RoleSpec
    train.task(dataset=tokens.uri, job_spec=JobSpec(roles={"worker": RoleSpec(4, 2, resources=Resources(cpu=2))}))

The run names the job: leave `job` empty there.
"""

from everstep.runtime.job.spec import (
    CleanPodPolicy,
    EndingPolicy,
    FaultRule,
    Hang,
    HangPolicy,
    JobSpec,
    NodeEvent,
    Oom,
    Patience,
    ReplicaType,
    Resources,
    RestartPolicy,
    RestartScope,
    RoleSpec,
    StragglerPolicy,
)
from everstep.runtime.protocol.rounds import Framework

__all__ = [
    "CleanPodPolicy", "EndingPolicy", "FaultRule", "Framework", "Hang", "HangPolicy", "JobSpec", "NodeEvent", "Oom",
    "Patience", "ReplicaType", "Resources", "RestartPolicy", "RestartScope", "RoleSpec", "StragglerPolicy",
]  # fmt: skip
