"""What measurements prove about nodes: which work, which do not, which are slow, and what stays open. Pure.

If all members of a group finish their work, each of them is proven healthy. If a group fails, this proves only that one
of its members is faulty: a node is named when all others of such a group are proven healthy. The number of faults is
not assumed to be bounded, so no node is named by guessing: every node that is not named faulty could be innocent. A
failure counts as 3600 s, and a straggler is (strictly) slower than twice the median, as in DLRover's network check.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from everstep.runtime.job.slow_checks import slow_threshold_s

FAILED_S = 3600.0
"""The value of a failed or unfinished measurement, in seconds."""


@dataclass(frozen=True)
class DeviceFinding:
    """What one CUDA device of a node measured, and what its driver says of it."""

    device: str
    """`cuda:0`"""
    matmul_s: float
    to_host: float
    """MB/s (10^6 bytes) of copies from it to pinned memory."""
    to_device: float
    lowered: tuple[str, ...] | None = None
    """Why its clocks were lower than they should be while it worked; None: its driver was not asked, or silent."""
    uncorrected: int | None = None
    """Memory errors that ECC could not correct; None: the driver was not asked, or the device has no ECC."""


@dataclass(frozen=True)
class Measurement:
    """What one node measured in one round, in seconds; FAILED_S for a failure."""

    node: str
    host: str
    matmul_s: float = FAILED_S
    self_reduce_s: float = FAILED_S
    """All-reduce in a group of one: the collective library works without any link."""
    all_reduce_s: float = FAILED_S
    """All-reduce with its group."""
    error: str = ""
    """One line: the first failure."""
    died: bool = False
    """Its process crashed, or hung while others of its group did not; or its links are too slow."""
    links: Mapping[str, float] = field(default_factory=dict)
    """Pairs of its own devices -> MB/s, if measured."""
    devices: tuple[DeviceFinding, ...] = ()
    unread: str = ""
    """Why the driver of its devices did not tell errors and clocks; empty if it did, or there are no devices."""
    untested: str = ""
    """Which of its devices had too little free memory to be tested; empty if none."""
    nccl_devices: int = 0
    """Devices with which it took part in its group's all-reduce over NCCL; 0: the group used gloo alone."""

    @property
    def works_alone(self) -> bool:
        """Everything that needs no partner succeeded."""
        return not self.died and self.matmul_s < FAILED_S and self.self_reduce_s < FAILED_S

    @property
    def works_together(self) -> bool:
        """The all-reduce with its group succeeded, too."""
        return self.works_alone and self.all_reduce_s < FAILED_S

    @property
    def elapsed_s(self) -> float:
        """Seconds of its own work: products and all-reduces, without waiting for others to begin."""
        return self.matmul_s + self.all_reduce_s if self.works_together else FAILED_S


@dataclass(frozen=True)
class Round:
    """One round of the check: the groups, the reason for them, and what each node measured. Resting nodes are in no
    group."""

    number: int
    """From 1."""
    groups: tuple[tuple[str, ...], ...]
    reason: str
    measured: Mapping[str, Measurement] = field(default_factory=dict)

    def has_failed(self, group: Iterable[str]) -> bool:
        """Did this group's all-reduce fail for any member? Then it proves nothing about the members' health."""
        return not all(self.measured[node].works_together for node in group)

    def elapsed_s(self) -> dict[str, float]:
        """Seconds of each node in group order; FAILED_S for every member of a group that failed."""
        return {
            node: FAILED_S if self.has_failed(group) else self.measured[node].elapsed_s
            for group in self.groups
            for node in group
        }


@dataclass(frozen=True)
class Evidence:
    """What some rounds prove. Each node is in exactly one of `healthy`, `faulty`, `untried`, `undecided`."""

    healthy: frozenset[str]
    """Proven by a group that worked, or trusted from the start."""
    faulty: Mapping[str, str]
    """Node -> the proof."""
    untried: frozenset[str]
    """Nothing it did failed, but none of its groups reached the all-reduce."""
    undecided: frozenset[str]
    """Its group failed, and another member may be the cause."""
    best_s: Mapping[str, float]
    """Node -> its best elapsed seconds; only for nodes of a group that worked."""
    own_s: Mapping[str, float]
    """Node -> its best seconds for the part that needs no partner."""
    slow: frozenset[str]
    """Best time more than twice the median of the nodes that measured the same: devices, or only CPUs."""
    limit_s: Mapping[str, float]
    """Node -> the best time above which it would be slow."""
    possibly_slow: frozenset[str]
    """Those of `slow` that may only have waited for another slow node."""
    tried_groups: frozenset[frozenset[str]]
    """Every group so far."""


def weigh(nodes: Sequence[str], past: Sequence[Round], trusted_names: Iterable[str] = ()) -> Evidence:
    """What the rounds prove about `nodes`; those in `trusted_names`, a subset, are known to be healthy."""
    broken_nodes: dict[str, str] = {}
    for round_ in past:
        for node, measurement in round_.measured.items():
            if not measurement.works_alone:
                broken_nodes.setdefault(node, measurement.error or "its own work did not end in time")
    groups_tried = [(round_, group) for round_ in past for group in round_.groups]
    failed_groups = [
        (round_, group)
        for round_, group in groups_tried
        if round_.has_failed(group) and not broken_nodes.keys() & set(group)
    ]
    passed_groups = [(round_, group) for round_, group in groups_tried if not round_.has_failed(group)]
    healthy = (set(trusted_names) | {node for _, group in passed_groups for node in group}) - broken_nodes.keys()
    faulty = {**_identify_faulty(failed_groups, healthy), **broken_nodes}
    undecided_nodes = {node for node in nodes if node not in healthy and node not in faulty}
    undecided = undecided_nodes & {node for _, group in failed_groups for node in group}
    best = _best_times(
        nodes, ((node, round_.measured[node].elapsed_s) for round_, group in passed_groups for node in group)
    )
    own = _best_times(
        nodes, ((node, measurement.matmul_s) for round_ in past for node, measurement in round_.measured.items())
    )
    best = {node: seconds for node, seconds in best.items() if node not in broken_nodes}
    limits = _slow_limits(best, past)
    slow = frozenset(node for node, seconds in best.items() if seconds > limits[node])
    return Evidence(
        healthy=frozenset(healthy),
        faulty=faulty,
        untried=frozenset(undecided_nodes - undecided),
        undecided=frozenset(undecided),
        best_s=best,
        own_s=own,
        slow=slow,
        limit_s=limits,
        possibly_slow=_possibly_slow(slow, [group for _, group in passed_groups], own, limits),
        tried_groups=frozenset(frozenset(group) for _, group in groups_tried),
    )


def _identify_faulty(failed_groups: Sequence[tuple[Round, Sequence[str]]], healthy: set[str]) -> dict[str, str]:
    """The nodes that are the only possible cause of a failed group, why, and the error that they measured."""
    partners: dict[str, dict[str, None]] = {}
    errors: dict[str, str] = {}
    for round_, group in failed_groups:
        suspects = [node for node in group if node not in healthy]
        if len(suspects) == 1:
            others = (node for node in group if node != suspects[0])
            partners.setdefault(suspects[0], {}).update(dict.fromkeys(others))
            errors[suspects[0]] = errors.get(suspects[0]) or round_.measured[suspects[0]].error
    return {
        node: f"works alone but not with {', '.join(others)}, proven to work with others"
        + (f" ({errors[node]})" if errors[node] else "")
        for node, others in partners.items()
    }


def _best_times(nodes: Sequence[str], times: Iterable[tuple[str, float]]) -> dict[str, float]:
    best: dict[str, float] = {}
    for node, seconds in times:
        best[node] = min(seconds, best.get(node, seconds))
    return {node: best[node] for node in nodes if node in best}


def _slow_limits(best_s: Mapping[str, float], past: Sequence[Round]) -> dict[str, float]:
    """Seconds of devices are compared with those of devices alone: a node whose devices train or are full has none."""
    with_devices = {node for round_ in past for node, measurement in round_.measured.items() if measurement.devices}
    limits: dict[str, float] = {}
    for nodes in (best_s.keys() & with_devices, best_s.keys() - with_devices):
        limits.update(dict.fromkeys(nodes, slow_threshold_s([best_s[node] for node in nodes])))
    return limits


def _possibly_slow(
    slow: frozenset[str],
    passed_groups: Sequence[Sequence[str]],
    own_s: Mapping[str, float],
    limit_s: Mapping[str, float],
) -> frozenset[str]:
    """A slow node is certainly slow if its own work is too slow, or if it was the only slow node of some group."""
    sharp = {node for node in slow if own_s[node] > limit_s[node]}
    for group in passed_groups:
        within = [node for node in group if node in slow]
        if len(within) == 1:
            sharp.add(within[0])
    return slow - sharp
