"""The verdict on each node, and the hosts that training should avoid. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from everstep.runtime.diagnosis.evidence import Evidence, Round, weigh
from everstep.runtime.job.slow_checks import SLOW_FACTOR


class Health(StrEnum):
    """The check's finding about a node."""

    HEALTHY = "healthy"
    STRAGGLER = "straggler"
    """It works, but its best time is more than twice the median. Only reported, unless stragglers are excluded."""
    FAULTY = "faulty"
    """Proven: do not use it."""
    UNDECIDED = "undecided"
    """It works alone, but not with others that work alone, too. The cause is the link or one of them; the check cannot
    tell which."""


@dataclass(frozen=True)
class Verdict:
    """The finding about a node, the reason, and the consequence."""

    node: str
    host: str
    health: Health
    reason: str
    avoid: bool
    """Training should not use the host."""
    best_s: float | None
    """Its best elapsed seconds; None if none of its groups worked."""


def judge(
    nodes: Sequence[str],
    hosts: Sequence[str],
    past: Sequence[Round],
    *,
    trusted_names: Iterable[str] = (),
    exclude_straggler: bool = False,
) -> list[Verdict]:
    """One verdict a node, in the order given.

    Undecided nodes are avoided. But if no node is proven to work, the first undecided one may be used: alone.
    """
    evidence = weigh(nodes, past, trusted_names)
    failures = _failures(past)
    lone = next((node for node in nodes if node in evidence.undecided), "")
    if evidence.healthy or evidence.untried:
        lone = ""
    verdicts = []
    for node, host in zip(nodes, hosts, strict=True):
        health, reason = _judge_node(node, failures.get(node, {}), evidence)
        avoid = health is Health.FAULTY or (health is Health.UNDECIDED and node != lone)
        avoid = avoid or (health is Health.STRAGGLER and exclude_straggler)
        verdicts.append(Verdict(node, host, health, reason, avoid, evidence.best_s.get(node)))
    return verdicts


Failures = Mapping[tuple[str, ...], str]
"""Groups of one node that failed and never worked -> the node's error."""


def _failures(past: Sequence[Round]) -> dict[str, dict[tuple[str, ...], str]]:
    groups_tried = [(round_, group, round_.has_failed(group)) for round_ in past for group in round_.groups]
    worked = {frozenset(group) for _, group, has_failed in groups_tried if not has_failed}
    failures: dict[str, dict[tuple[str, ...], str]] = {}
    for round_, group, has_failed in groups_tried:
        if has_failed and frozenset(group) not in worked:
            for node in group:
                failures.setdefault(node, {}).setdefault(group, round_.measured[node].error)
    return failures


def _judge_node(node: str, failures: Failures, evidence: Evidence) -> tuple[Health, str]:
    if node in evidence.faulty:
        return Health.FAULTY, evidence.faulty[node]
    if node in evidence.undecided:
        return Health.UNDECIDED, _undecided_reason(node, failures, evidence)
    if node in evidence.untried:
        return Health.HEALTHY, "works alone; no partner was left to try the link"
    if node in evidence.slow:
        return Health.STRAGGLER, f"{evidence.best_s[node]:.2f} s at best, more than {_limit_text(node, evidence)}"
    return Health.HEALTHY, _healthy_reason(node, failures, evidence)


def _limit_text(node: str, evidence: Evidence) -> str:
    whose = "the other node's" if len(evidence.best_s) == 2 else "the median of all nodes,"
    return f"{SLOW_FACTOR:g} x {whose} {evidence.limit_s[node] / SLOW_FACTOR:.2f} s"


def _healthy_reason(node: str, failures: Failures, evidence: Evidence) -> str:
    apart = [peer for group in failures if evidence.healthy.issuperset(group) for peer in group if peer != node]
    if apart:
        return f"works, but not with {', '.join(dict.fromkeys(apart))}, which works too: look at the link between them"
    return "works alone and with its group"


def _undecided_reason(node: str, failures: Failures, evidence: Evidence) -> str:
    partners = (peer for group in failures for peer in group if peer != node and peer in evidence.undecided)
    why = f"works alone but not with {', '.join(dict.fromkeys(partners))}: the link between them, or one of them"
    error = next(filter(None, failures.values()), "")
    return f"{why} ({error})" if error else why


def usable_count(verdicts: Sequence[Verdict]) -> int:
    """Number of nodes that training may use."""
    return sum(not verdict.avoid for verdict in verdicts)


def avoided_hosts(verdicts: Sequence[Verdict]) -> list[str]:
    """The hosts that training should avoid, in order, each once."""
    return list(dict.fromkeys(verdict.host for verdict in verdicts if verdict.avoid))


def nodes_with(verdicts: Sequence[Verdict], health: Health) -> list[str]:
    """The nodes with that health."""
    return [verdict.node for verdict in verdicts if verdict.health is health]
