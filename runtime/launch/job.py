"""What a user asked a launch for, and the job that it describes: counted as torchrun does, or by a job spec."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from everstep.runtime.agent.logs import LogPlan
from everstep.runtime.diagnosis.switchbox import SwitchboxSpec
from everstep.runtime.job.spec import EndingPolicy, Hang, JobSpec, Patience, Placement, RoleSpec, StragglerPolicy
from everstep.runtime.launch.affinity import Cpus
from everstep.runtime.launch.job_spec import ROLE
from everstep.runtime.launch.rendezvous import Rendezvous


@dataclass(frozen=True)
class Endpoint:
    """Where the nodes of the job find its master."""

    host: str
    port: int
    is_host: bool | None
    """This node hosts the master; None: if `host` is this machine."""


@dataclass(frozen=True)
class NodeCheck:
    """How nodes are checked before they join."""

    is_wanted: bool
    exclude_straggler: bool
    box: SwitchboxSpec | None
    """Pairs of this node's devices whose links are measured; None: none are."""


@dataclass(frozen=True)
class Saving:
    """Where this node's checkpoints are copied to, and which stay in the store."""

    persist_interval: int
    """Iterations."""
    overhead: float
    """The share of the time that persisting may take; 0: the interval decides."""
    bytes_per_s: float
    """Limit of this node's writes; 0: none."""
    keep_last: int
    keep_every: int
    peer_copies: int
    """In other nodes' memory."""


@dataclass(frozen=True)
class Launch:
    """One node's part in a job, as the user asked for it."""

    spec: JobSpec | None
    """--job-spec combined with the flags; None: the flags alone describe the job."""
    role: str
    """This node's role, to the master."""
    nodes: int
    """Nodes of all roles."""
    min_nodes: int
    node_unit: int
    """The size of a round is a multiple of this, unless a spec says it for each role."""
    slots: int
    """Workers on this node."""
    index: int
    """The node number that the user asked for; -1: any."""
    endpoint: Endpoint | None
    """None: this node is alone, and its master listens on loopback."""
    run_id: str
    role_name: str
    workers_endpoint: tuple[str, int] | None
    """MASTER_ADDR and MASTER_PORT if the command line fixes them."""
    local_addr: str
    rendezvous: Rendezvous
    max_restarts: int
    command: tuple[str, ...]
    """As `everstep.runtime.agent.script` reads it."""
    plain: bool
    """Workers are started by exec."""
    preload: tuple[str, ...]
    spares: int
    """Warm spare processes of this node."""
    signals: tuple[signal.Signals, ...]
    shutdown_s: float
    virtual_local_rank: bool
    threads: str
    """OMP_NUM_THREADS for the workers; empty: it stays unset."""
    sets_threads: bool
    """The user has not set OMP_NUM_THREADS and several workers share the node: it becomes 1, and a line says so."""
    logs: LogPlan
    logs_specs: str
    """Entry point of the class that lays out the logs; empty: torch's default layout."""
    events: str
    """Name of torch's handler that gets the launch's events."""
    backend: str
    """The rendezvous backend, as torch names it in events."""
    entry_point: str
    """The workers' entry point, as torch names it in events."""
    cpus: Cpus
    tls: bool
    """TLS between machines."""
    check: NodeCheck
    store: str
    """URI; empty: the user named none."""
    saving: Saving
    cooldown_s: float
    hang: Hang
    stragglers: StragglerPolicy
    environment: Mapping[str, str]
    """Variables for the workers, besides the ranks."""


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
        check_s=Patience().check_s if options.check.is_wanted else 0.0,
    )
    # As torchrun counts: every failure of a worker costs a restart, also a kill; a change of membership costs none.
    limits = {"restart_limit": options.max_restarts, "fail_policy": EndingPolicy.ANY}
    role = RoleSpec(options.nodes, options.min_nodes, options.slots, node_unit=options.node_unit, **limits)
    spec = JobSpec(job, {ROLE: role}, patience, hosts="", placement=Placement.JOINED, hang=options.hang)
    spec = replace(spec, stragglers=options.stragglers)
    saving = options.saving
    return replace(spec, keep_last=saving.keep_last, keep_every=saving.keep_every, peer_copies=saving.peer_copies)
