"""The specification of a job: roles, sizes, policies, timeouts. Plain data; `spec_problems` validates it.

The policies' names and values are those of AITrainingJob; the docstrings say what each does here. Defaults are those of
torchrun and DLRover (docs/faults.md shows the whole table).
"""

from enum import StrEnum
from typing import Any

import msgspec

from everstep.runtime.protocol.rounds import Framework

GIB = 1 << 30
KEEP_LAST = 3
"""Checkpoints kept in the store: the newest, one to step back to, and one more in case one is damaged."""
START_TIMEOUT_S = 1800.0


class Placement(StrEnum):
    """Where the nodes of a job come from."""

    PLATFORM = "platform"
    """The brain requests nodes and replacements from the platform."""
    JOINED = "joined"
    """Nodes come by themselves, as under `everstep launch`: a join admits a node. Nodes are never requested or
    replaced; those beyond the desired size wait as spares."""


class EndingPolicy(StrEnum):
    """How many nodes of a role must complete (or fail) for the role to be complete (or failed). A job counts its roles
    likewise."""

    ALL = "All"
    """All of them."""
    ANY = "Any"
    """One of them."""
    NONE = "None"
    """Never: the job does not wait for nodes of such a role, and their failures do not fail it."""
    RANK0 = "Rank0"
    """The first node decides; for a job the first node of its first role."""


class ReplicaType(StrEnum):
    """What AITrainingJob calls a role. It changes nothing here, where a role is what its name and fields say."""

    MASTER = "master"
    WORKER = "worker"


class RestartPolicy(StrEnum):
    """Which faults cause a restart (docs/faults.md says how). After any other fault the node is given up."""

    ALWAYS = "Always"
    """Every fault."""
    ON_FAILURE = "OnFailure"
    """Workers that fail; not the loss of a node."""
    NEVER = "Never"
    """No fault."""
    EXIT_CODE = "ExitCode"
    """Workers that fail with an exit code that a fault rule of the role lists."""
    ON_NODE_FAIL = "OnNodeFail"
    """The loss of a node, a kill from outside, faulty hardware; not a worker's own failure."""
    ON_NODE_FAIL_WITH_EXIT_CODE = "OnNodeFailWithExitCode"
    """Those of OnNodeFail and of ExitCode; without a rule that lists codes, those of OnNodeFail."""


class RestartScope(StrEnum):
    """Which nodes are restarted with a faulty one. A new round restarts all workers in any case."""

    POD = "Pod"
    """Only the faulty node, in place or elsewhere, as the table of faults says."""
    REPLICA = "Replica"
    """All nodes of its role are replaced."""
    ALL = "All"
    """All nodes of the job are replaced."""


class CleanPodPolicy(StrEnum):
    """Which nodes are removed after the job's end. All are told to leave first."""

    ALL = "All"
    """All nodes."""
    RUNNING = "Running"
    """The nodes that have not ended by themselves in time."""
    NONE = "None"
    """No node."""


class HangPolicy(StrEnum):
    """What happens once all ranks stand still and their stacks are written."""

    REPORT = "report"
    """The job continues; the hang is reported."""
    RESTART = "restart"
    """All workers restart in a new round."""
    FAIL = "fail"
    """The job fails."""


class StragglerPolicy(StrEnum):
    """What happens to a slow node: one whose check took more than twice the median of the job's nodes, or for which the
    others wait in iteration after iteration. Every policy reports it, with its slow part."""

    REPORT = "report"
    """It is only reported."""
    EXCLUDE = "exclude"
    """After a slow check, it is replaced, and its host is avoided."""
    REPLACE = "replace"
    """Also while it trains, once per replica, if the job can continue without it meanwhile."""


class NodeEvent(StrEnum):
    """Events of nodes that a fault rule can name, besides exit codes."""

    NODE_NOT_READY = "nodeNotReady"
    """The node is lost or silent."""
    POD_FORCE_DELETED = "PodForceDeleted"
    """The node's pod is gone."""
    POD_EVICTED = "PodEvicted"
    """The node's pod is gone, or a worker was killed from outside."""
    OOM_KILLED = "OOMKilled"
    """A worker or the node ran out of memory."""


class Resources(msgspec.Struct, frozen=True):
    """The resources of a node; 0: everything that its host has."""

    cpu: float = 0.0
    """Cores."""
    memory_bytes: int = 0
    """Bytes."""
    others: dict[str, float] = {}
    """Devices by the name of their resource: `nvidia.com/gpu`, `metax-tech.com/gpu`..."""


class FaultRule(msgspec.Struct, frozen=True):
    """Replaces the role's policy and scope for faults with these exit codes or events."""

    exit_codes: tuple[int, ...] = ()
    """Signals count as 128 + number."""
    events: tuple[NodeEvent, ...] = ()
    """A rule lists exit codes or events, not both."""
    restart_policy: RestartPolicy = RestartPolicy.ALWAYS
    restart_scope: RestartScope = RestartScope.POD


class RoleSpec(msgspec.Struct, frozen=True):
    """A kind of node, and the number of such nodes."""

    nodes: int
    """Desired number of nodes at the start."""
    min_nodes: int
    """A round needs this many nodes."""
    slots: int = 1
    """Workers per node."""
    max_nodes: int = 0
    """Upper bound of scaling; 0: `nodes`."""
    spare_nodes: int = 0
    """Nodes that the platform keeps beyond the desired number. They wait without a seat, and take that of a lost one at
    once; its replacement is then the spare."""
    node_unit: int = 1
    """The number of nodes in a round is a multiple of this."""
    resources: Resources = Resources()
    priority: int = 0
    """Nodes of a role with a higher priority are created first; nodes beyond the minimum are created last.

    Priority only orders creation: a running node is never ended for one of higher priority. Nodes beyond the minimum
    are the first to be killed by a machine that is out of memory, or by a cluster that preempts pods.
    """
    waits_for: tuple[str, ...] = ()
    """Roles whose nodes must have joined before nodes of this role are requested."""
    restart_policy: RestartPolicy = RestartPolicy.ALWAYS
    restart_scope: RestartScope = RestartScope.POD
    fault_rules: tuple[FaultRule, ...] = ()
    """The first rule that matches a fault applies."""
    restart_limit: int | None = None
    """How many restarts the faults of all its nodes may cause together; None: only each node's own limit applies."""
    restart_time_limit_s: float = 0.0
    """A replacement that has not joined for this long is lost; 0: `Patience.join_timeout_s`."""
    restart_timeout_s: float = 0.0
    """After its first round, and that since the job was taken up again, the job ends if the role lacks its minimum for
    this long; 0: `Patience.join_timeout_s`."""
    scale_out_timeout_s: float = 0.0
    """After scaling, nodes that have not joined for this long are given up; 0: never."""
    complete_policy: EndingPolicy = EndingPolicy.ALL
    fail_policy: EndingPolicy = EndingPolicy.NONE
    """When nodes that were given up fail the role. None: never, as long as the minimum is there."""
    replica_type: ReplicaType = ReplicaType.WORKER
    """Accepted and ignored: the role's name and fields say what it is."""
    template: dict[str, Any] = {}
    """How its pods differ from the train step's pod, as a Kubernetes PodTemplateSpec: one container's image,
    imagePullPolicy, workingDir, command, args, env, envFrom, resources, volumeMounts and securityContext; the pod's
    volumes, tolerations, nodeSelector, affinity, hostNetwork and the like; labels and annotations. Empty: not at
    all."""

    @property
    def most(self) -> int:
        """The largest number of nodes that the role may have."""
        return self.max_nodes or self.nodes

    @property
    def least(self) -> int:
        """The smallest number of nodes that a round may have: the minimum, as a multiple of the node unit."""
        return -(-self.min_nodes // self.node_unit) * self.node_unit


class Patience(msgspec.Struct, frozen=True):
    """Timeouts in seconds, and limits of retries."""

    join_window_s: float = 30.0
    """After the last join, how long a round with at least the minimum waits for more nodes."""
    join_timeout_s: float = 600.0
    """How long the job may lack its minimum before it ends with exit code 3."""
    replacement_wait_s: float = 10.0
    """After a loss, how long survivors wait for the replacement before they continue with fewer nodes. They do not wait
    if no node of the job has ever started that fast."""
    cooldown_s: float = 30.0
    """After a change of membership, how long a running round is not broken only to add nodes, at least."""
    restart_cost_s: float = 10.0
    """What a restart costs at least; what the last one took counts if that is more. A running round is not broken to
    grow before the nodes that wait have lost as much as all others would lose: 2,047 nodes wait longer for one than
    three do. 0: only the cool-down counts."""
    silence_s: float = 30.0
    """How long a node may send no heartbeat before it is lost."""
    leave_s: float = 20.0
    """How long a node that was told to leave may take to end by itself before the platform ends it."""
    handover_s: float = 5.0
    """How long before a leaving node's deadline its round is broken, so that others can take over its state."""
    check_s: float = 3.0
    """Before a restart that faulty hardware may have caused, how long to wait for the nodes to test themselves; 0: no
    test."""
    dump_s: float = 30.0
    """After a hang, how long to wait for the stacks of all ranks."""
    max_restarts: int = 3
    """Rounds that a user's error may end before the job fails."""
    same_error: int = 2
    """How often the same error may occur at the same iteration before the job fails; 0: any number of times."""
    max_relaunches: int = 3
    """Replacements of one node (role and index)."""
    no_progress: int = 10
    """Consecutive rounds that a fault ends without a new iteration before the job fails."""


class Hang(msgspec.Struct, frozen=True):
    """When a job hangs, and what happens then. Under every policy the stacks of all ranks are written first."""

    policy: HangPolicy = HangPolicy.RESTART
    timeout_s: float = 300.0
    """How long no rank's beacon may change after progress in a round."""
    start_timeout_s: float = START_TIMEOUT_S
    """How long a round may take to its first progress: imports, rendezvous and compilation may take minutes. The
    default applies to scripts that are known to show progress; any other value applies to every script. A script whose
    ranks compute is not hanging."""
    phases: dict[str, float] = {}
    """Seconds without progress in phases that the script names: `{evaluation: 3600}`. Without an entry, `evaluation`,
    `torch.save` (any save that is seen), `export`, and the waits for the agent `fetch`, `memory` and `flush` may take
    `start_timeout_s`, if that is more than `timeout_s`."""


class Oom(msgspec.Struct, frozen=True):
    """How much memory a node gets after it ran out of memory, if its role sets the memory. The rule is DLRover's."""

    factor: float = 2.0
    """The node's memory is multiplied by this."""
    increment_bytes: int = 8 * GIB
    """Largest increase at once."""
    limit_bytes: int = 64 * GIB
    """Upper bound; if it is not written, at least the memory of each role. A node that runs out of this much fails the
    job."""


class JobSpec(msgspec.Struct, frozen=True):
    """One elastic job."""

    job: str = ""
    """Its key in the store is jobs/<job>; `<workflow uid>-<step>`. Empty: the program that runs the job names it."""
    roles: dict[str, RoleSpec] = {}
    """The roles by name, such as `worker`."""
    patience: Patience = Patience()
    avoid_hosts: tuple[str, ...] = ()
    """Hosts that get no node of this job."""
    hosts: str = "local-"
    """Prefix of the hosts that nodes are placed on by number (`local-0`...); empty: the platform places them."""
    placement: Placement = Placement.PLATFORM
    topology: tuple[str, ...] = ()
    """Lines `access-switch pod-switch ip`, as in DLRover's `topology_config`: nodes under one access switch get
    adjacent ranks, those of rank 0's switch first. Without such lines, nodes of one zone and of one machine get
    adjacent ranks."""
    host_order: tuple[str, ...] = ()
    """Machines in rank order, as a check found them; others follow. Nodes prefer to run on them. Empty: ranks follow
    the nodes' indices."""
    framework: Framework = Framework.PYTORCH
    hang: Hang = Hang()
    oom: Oom = Oom()
    stragglers: StragglerPolicy = StragglerPolicy.REPORT
    hardware_exit_codes: tuple[int, ...] = (14, 201, 202)
    """Exit codes of workers and agents that mean faulty hardware."""
    complete_policy: EndingPolicy = EndingPolicy.ALL
    """Which roles must be complete for the job to succeed; roles with the policy None do not count."""
    fail_policy: EndingPolicy = EndingPolicy.ANY
    """Which roles must fail for the job to fail."""
    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.ALL
    time_limit_s: float = 0.0
    """How long after its first round the job may last before it fails; 0: without end. A job that is resumed after its
    end has its full time again."""
    fault_tolerant: bool = True
    """False: a role that names no `restartPolicy` has Never."""
    priority_class: str = ""
    """PriorityClass of its pods on a cluster, as --priority-class; empty or `normal`: that of the step's own pod."""
    scheduler_name: str = ""
    """Scheduler of its pods on a cluster, unless --gang or a role's template names one; empty: that of the step's own
    pod."""
    peer_copies: int = 1
    """How many copies of each rank's own part of a sharded state other nodes' memory keeps, each on another machine: as
    many machines may be lost at once, and training goes on from memory."""
    keep_last: int = KEEP_LAST
    """How many committed checkpoints to keep in the store, the newest ones; 0: all."""
    keep_every: int = 0
    """Also keep the newest checkpoint of each iteration that is a multiple of this; 0: none."""
    certify_interval: int = 0
    """Iterations between two states that are compared across replicas; only states that agree are restored. 0: every
    complete state is."""
    loss_spike: float = 0.0
    """With certify_interval: a loss above this many times the median of those before counts as unsound, as a non-finite
    one does; 0: no loss does."""
    skip_batches: int = 0
    """With certify_interval: how many batches may be skipped whose loss was unsound again when the iteration was
    repeated; beyond that the job fails."""
    certify_replay: bool = False
    """With certify_interval: another rank computes the gradients of a state's last iteration again before the state is
    certified. The script must use everstep.Replay."""


LAUNCHER = "launcher"
"""The role that runs horovodrun; the others' nodes are its hosts."""
TENSORFLOW_ROLES = ("chief", "worker", "ps", "evaluator")
"""The tasks of TensorFlow's cluster, and the evaluator beside it."""
