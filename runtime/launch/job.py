"""The job that a command line describes: by its flags alone, as torchrun counts, or with a job spec."""

from msgspec.structs import replace

from everstep.runtime.job.spec import EndingPolicy, JobSpec, Patience, Placement, RoleSpec
from everstep.runtime.launch.job_spec import ROLE
from everstep.runtime.launch.options import Launch


def job_of(told: Launch, job: str) -> JobSpec:
    """What the master is given, under the job's name."""
    if told.spec is not None:
        return replace(told.spec, job=job, hosts="")
    patience = Patience(
        join_window_s=told.rendezvous.last_call_s,
        join_timeout_s=told.rendezvous.join_timeout_s,
        cooldown_s=told.cooldown_s,
        silence_s=told.rendezvous.silence_s,
        max_restarts=told.max_restarts,
        same_error=0,
        no_progress=0,
    )
    # As torchrun counts: every failure of workers costs a restart, also a kill; a change of membership none.
    limits = {"restart_limit": told.max_restarts, "fail_policy": EndingPolicy.ANY}
    role = RoleSpec(told.nodes, told.min_nodes, told.slots, node_unit=told.node_unit, **limits)
    spec = JobSpec(job, {ROLE: role}, patience, hosts="", placement=Placement.JOINED, hang=told.hang)
    return replace(spec, keep_last=told.keep_last, keep_every=told.keep_every)
