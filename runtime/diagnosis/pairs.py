"""Who checks with whom, and what their measurements say. Pure: the rules of the node check, no IO.

Round 0 of DLRover's network check: adjacent pairs, an odd one joins the last group; a failure counts as 3600 s. That
rule needs four nodes to name one. Ours lets each node first work alone, so that a node that fails by itself is named
among two, and a pair whose members work alone but not together is told as what it is: undecided.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

FAILED_S = 3600.0
"""What a failed or unfinished measurement counts, in seconds."""


class Health(StrEnum):
    """What the check says of a node."""

    HEALTHY = "healthy"
    FAULTY = "faulty"
    """It failed by itself: do not use it."""
    UNDECIDED = "undecided"
    """It works alone, but not with its partner, which also works alone: the link, or one of the two."""


@dataclass(frozen=True)
class Measurement:
    """What one node measured, in seconds; FAILED_S for what failed or never ended."""

    node: str
    host: str
    matmul_s: float = FAILED_S
    self_reduce_s: float = FAILED_S
    """All-reduce in a group of its own: its collective library works without any link."""
    all_reduce_s: float = FAILED_S
    """All-reduce with its group."""
    error: str = ""
    """One line: what failed first."""
    died: bool = False
    """Its process crashed, or never ended though each of its waits has an end."""

    @property
    def works_alone(self) -> bool:
        """Everything that needs no partner was done."""
        return not self.died and self.matmul_s < FAILED_S and self.self_reduce_s < FAILED_S

    @property
    def works_together(self) -> bool:
        """The all-reduce with its group was done."""
        return self.all_reduce_s < FAILED_S


@dataclass(frozen=True)
class Verdict:
    """A node's measurement and what follows from it."""

    measurement: Measurement
    health: Health
    reason: str
    avoid: bool
    """Training should not use the host."""


def groups(nodes: Sequence[str]) -> list[tuple[str, ...]]:
    """Adjacent pairs; an odd one joins the last group; a single node is a group of one."""
    pairs = [tuple(nodes[at : at + 2]) for at in range(0, len(nodes), 2)]
    if len(pairs) > 1 and len(pairs[-1]) == 1:
        pairs[-2:] = [pairs[-2] + pairs[-1]]
    return pairs


def judge(grouped: Sequence[Sequence[Measurement]]) -> list[Verdict]:
    """One verdict a node, in the order given; `grouped` has the measurements of each group together.

    Of a group that works only apart, the first node may still be used: alone it is known to work.
    """
    return [verdict for group in grouped for verdict in _judge_group(group)]


def _judge_group(group: Sequence[Measurement]) -> list[Verdict]:
    faulty = [one.node for one in group if not one.works_alone]
    apart = [one.node for one in group if one.works_alone and not one.works_together]
    verdicts = []
    for one in group:
        if not one.works_alone:
            verdicts.append(Verdict(one, Health.FAULTY, one.error or "its own work did not end in time", True))
        elif one.works_together:
            verdicts.append(Verdict(one, Health.HEALTHY, "works alone and with its group", False))
        elif faulty:
            why = f"works alone; its partner {', '.join(faulty)} is faulty, so their link was not tried"
            verdicts.append(Verdict(one, Health.HEALTHY, why, False))
        else:
            others = ", ".join(other.node for other in group if other is not one)
            why = f"works alone but not with {others}: the link between them, or one of them"
            why += f" ({one.error})" if one.error else ""
            verdicts.append(Verdict(one, Health.UNDECIDED, why, one.node != apart[0]))
    return verdicts


def usable(verdicts: Sequence[Verdict]) -> int:
    """How many nodes training may use."""
    return sum(not verdict.avoid for verdict in verdicts)


def avoided_hosts(verdicts: Sequence[Verdict]) -> list[str]:
    """The hosts that training should avoid, in order, each once."""
    return list(dict.fromkeys(verdict.measurement.host for verdict in verdicts if verdict.avoid))
