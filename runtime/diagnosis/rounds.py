"""The groups of the next round of the node check, or the reason that there is none. Pure.

Round 1: adjacent pairs, an odd node joins the last group. Round 2: sorted by time, the fastest with the slowest (both
as in DLRover's network check). Round 3: each node that is still open with one that is proven healthy. With at most N/4
faulty nodes of N, each of which makes its whole group fail, three rounds name exactly these:

- round 1 leaves at most 2 * N/4 open nodes (one more for odd N), so at least as many healthy ones (one fewer);
- round 2 gives each open node a healthy partner of its own, but for odd N one group may get two open nodes;
- round 3 gives each of those two a healthy partner.

The published rule ends after round 2 and names every node that failed twice: for odd N it can name an innocent node.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from everstep.runtime.diagnosis.evidence import Evidence, Round, weigh
from everstep.runtime.job.slow_checks import SLOW_FACTOR

ROUNDS = 3
ROUNDS_OF_THREE = 4
"""With three nodes: after the group of all, each of the three pairs. A single faulty node fails in just two."""


@dataclass(frozen=True)
class Plan:
    """The groups of the next round, none when the check is over; and the reason."""

    groups: tuple[tuple[str, ...], ...]
    reason: str


def next_round(nodes: Sequence[str], past: Sequence[Round], trusted_names: Iterable[str] = ()) -> Plan:
    """The next round, as a function of everything measured so far.

    Args:
        nodes: all participants, in rank order.
        past: the rounds so far.
        trusted_names: those of `nodes` that are known to be healthy and only serve as partners.
    """
    trusted_nodes = frozenset(trusted_names)
    if not past and not trusted_nodes:
        return Plan(tuple(pair_adjacent(nodes)), "adjacent pairs")
    evidence = weigh(nodes, past, trusted_nodes)
    sought = _open_nodes(evidence, past) - trusted_nodes  # A trusted partner may be slow because it is training.
    if not sought:
        return Plan((), "every node is decided")
    if len(past) >= (ROUNDS_OF_THREE if len(nodes) == 3 else ROUNDS):
        return Plan((), f"{len(past)} rounds leave nodes undecided")
    all_again = len(past) == 1 and not trusted_nodes
    able = [node for node in _sort_by_time(nodes, evidence) if node not in evidence.faulty]
    pool = able if all_again else _add_partners(able, sought)
    groups = pair_fastest_with_slowest(pool, evidence.tried_groups)
    new = any(frozenset(group) not in evidence.tried_groups and sought & set(group) for group in groups)
    if not groups or not (new or all_again):
        return Plan((), "no other partner is left to try")
    return Plan(tuple(groups), "the fastest with the slowest" if all_again else "each open node with a healthy one")


def pair_adjacent(nodes: Sequence[str]) -> list[tuple[str, ...]]:
    """Adjacent pairs; an odd node joins the last group; a single node is a group of one."""
    pairs = [tuple(nodes[at : at + 2]) for at in range(0, len(nodes), 2)]
    if len(pairs) > 1 and len(pairs[-1]) == 1:
        pairs[-2:] = [pairs[-2] + pairs[-1]]
    return pairs


def pair_fastest_with_slowest(pool: Sequence[str], groups_tried: frozenset[frozenset[str]]) -> list[tuple[str, ...]]:
    """Pairs of a pool that is sorted by time: the slowest with the fastest that it has not been alone with, and so on.

    Nodes that have been with every other are paired last. An odd node joins the last group, or rests if that group of
    three was tried before.
    """
    unpaired = list(pool)
    groups: list[tuple[str, ...]] = []
    by_time: list[str] = []
    while unpaired:
        slowest = unpaired.pop()
        at = next(
            (at for at, partner in enumerate(unpaired) if frozenset((slowest, partner)) not in groups_tried), None
        )
        if at is None:
            by_time.insert(0, slowest)
        else:
            groups.append((unpaired.pop(at), slowest))
    while len(by_time) > 1:
        groups.append((by_time.pop(0), by_time.pop()))
    if by_time and groups and frozenset((*groups[-1], by_time[0])) not in groups_tried:
        groups[-1] += (by_time[0],)
    return groups


def _open_nodes(evidence: Evidence, past: Sequence[Round]) -> frozenset[str]:
    """The nodes about which another round may prove something.

    After the first round these include all nodes twice as slow as the fastest. Half of the nodes may have had a slow
    partner, so the median says little, and a slow moment should not make a straggler.
    """
    slow = evidence.possibly_slow
    if len(past) == 1 and evidence.best_s:
        fastest = min(evidence.best_s.values())
        slow = frozenset(node for node, seconds in evidence.best_s.items() if seconds > SLOW_FACTOR * fastest)
    return evidence.undecided | evidence.untried | slow


def _sort_by_time(nodes: Sequence[str], evidence: Evidence) -> list[str]:
    """Proven nodes first, by time; then the untried; then those whose groups failed (3600 s)."""

    def key(node: str) -> tuple[bool, bool, float]:
        return node in evidence.undecided, node in evidence.untried, evidence.best_s.get(node, 0.0)

    return sorted(nodes, key=key)


def _add_partners(able: Sequence[str], sought: frozenset[str]) -> list[str]:
    """The open nodes and as many settled ones, the fastest, in the order of `able`."""
    partners = set([node for node in able if node not in sought][: len(sought)])
    return [node for node in able if node in sought or node in partners]
