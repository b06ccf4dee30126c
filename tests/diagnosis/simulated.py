"""Simulated nodes for the rules of the node check: a group with a faulty member fails for all its members."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from everstep.runtime.diagnosis.evidence import FAILED_S, Measurement, Round
from everstep.runtime.diagnosis.rounds import Plan, next_round

Links = dict[str, float]
"""Node -> seconds that an all-reduce takes with it, where not 0.1: its whole group waits for it."""
Plans = Callable[[Sequence[str], Sequence[Round], Sequence[str]], Plan]


def names(count: int) -> list[str]:
    """`0`, `1`..."""
    return [str(number) for number in range(count)]


def check(
    nodes: Sequence[str],
    together: Sequence[str] = (),
    alone: Sequence[str] = (),
    *,
    links: Links | None = None,
    own: Links | None = None,
    trusted: Sequence[str] = (),
    plan: Plans = next_round,
) -> list[Round]:
    """The rounds of a whole check.

    Args:
        together: nodes that fail, with everybody in their group, and never alone.
        alone: nodes that fail by themselves: their groups are not tried.
        own: node -> seconds of its products, where not 0.5.
    """
    past: list[Round] = []
    while (planned := plan(nodes, past, trusted)).groups:
        measurements = {}
        for group in planned.groups:
            reduced = _all_reduce(group, {*together}, {*alone}, links or {})
            for node in group:
                products = FAILED_S if node in alone else (own or {}).get(node, 0.5)
                measurements[node] = Measurement(node, f"host-{node}", products, 0.01, reduced)
        past.append(Round(len(past) + 1, planned.groups, planned.reason, measurements))
    return past


def _all_reduce(group: Sequence[str], together: set[str], alone: set[str], links: Links) -> float:
    if alone.intersection(group) or (together.intersection(group) and len(group) > 1):
        return FAILED_S
    return max(links.get(node, 0.1) for node in group)


def fault_sets(nodes: Sequence[str], most: int, least: int = 0) -> Iterator[tuple[str, ...]]:
    """Every set of `least` to `most` of the nodes."""
    for count in range(least, most + 1):
        yield from combinations(nodes, count)
