"""The job that a command line describes: from its flags alone, counted as torchrun does, or from a job spec."""

from msgspec.structs import replace

from everstep.runtime.job.spec import EndingPolicy, JobSpec, Patience, Placement, RoleSpec
from everstep.runtime.launch.job_spec import ROLE
from everstep.runtime.launch.options import Launch


def job_of(options: Launch, job: str) -> JobSpec:
    """The spec that the master gets, under the job's name."""
    if options.spec is not None:
        return replace(options.spec, job=job, hosts="")
    patience = Patience(
        join_window_s=options.rendezvous.last_call_s,
        join_timeout_s=options.rendezvous.join_timeout_s,
        cooldown_s=options.cooldown_s,
        silence_s=options.rendezvous.silence_s,
        max_restarts=options.max_restarts,
        same_error=0,
        no_progress=0,
    )
    # As torchrun counts: every failure of a worker costs a restart, also a kill; a change of membership costs none.
    limits = {"restart_limit": options.max_restarts, "fail_policy": EndingPolicy.ANY}
    role = RoleSpec(options.nodes, options.min_nodes, options.slots, node_unit=options.node_unit, **limits)
    spec = JobSpec(job, {ROLE: role}, patience, hosts="", placement=Placement.JOINED, hang=options.hang)
    return replace(spec, keep_last=options.keep_last, keep_every=options.keep_every)
