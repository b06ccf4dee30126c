"""Which node does not answer, by what the members of a round say of each other: pure functions of their accusations.

After SWIM (Das, Gupta, Motivala 2002: ping, and ping-req through others) and its Lifeguard extensions. An agent whose
workers stand still asks its neighbours' agents, directly and through others, and its heartbeats name those that do not
answer. Such an accusation stands until the accuser's next heartbeat, and counts only while the master has heard nothing
of the accused since it was asked, unless the accused itself accuses others: then a link between them is broken.

A new master has heard of nobody. What is said of a node that it has not heard of counts at once, as nodes that are only
on their way to it answer their neighbours; but where it is one's word against another's, or few accuse many, it waits
for the others.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

VOTE_S = 0.5
"""How long after the first accusation the others may bring theirs: all stand still since the same moment."""
REACH_S = 5.0
"""How long after its claim a new master waits for those that may have something to say."""
MOST_ASKERS = 8


@dataclass(frozen=True)
class _Accusation:
    silent: tuple[str, ...]
    since: float


class Accusations:
    """The accusations of one round. False while there are none."""

    def __init__(self, reach_until: float = -math.inf) -> None:
        """`reach_until`: before this, some may have not reached this master."""
        self._reach_until = reach_until
        self._by_accuser: dict[str, _Accusation] = {}
        self._first_at = math.inf

    def __bool__(self) -> bool:
        return bool(self._by_accuser)

    @property
    def deadlines(self) -> tuple[float, ...]:
        """When those that could accuse have had the time; none if nobody accuses."""
        return (self._first_at + VOTE_S, self._reach_until) if self._by_accuser else ()

    def names(self) -> set[str]:
        """All that accuse or are accused."""
        return set(self._by_accuser).union(*(accusation.silent for accusation in self._by_accuser.values()))

    def record(self, accuser: str, silent: tuple[str, ...], now: float, for_s: float) -> None:
        """The accuser's newest heartbeat names these, which have not answered for `for_s`."""
        if silent:
            self._by_accuser[accuser] = _Accusation(silent, now - for_s)
            self._first_at = min(self._first_at, now)
        elif self._by_accuser.pop(accuser, None) and not self._by_accuser:
            self._first_at = math.inf

    def suspects(
        self,
        askers: Collection[str],
        members: Collection[str],
        heartbeat_times: Mapping[str, float],
        unheard: Collection[str],
        running: int,
        now: float,
    ) -> dict[str, tuple[str, ...]]:
        """Who is suspected -> who asked; of `running` nodes. Empty while others may still accuse, unless
        the accusers are not fewer than the accused and nobody else is in the round.

        `unheard`: running nodes that have not reached this master yet.
        """
        pairs = {
            (accuser, name)
            for accuser, accusation in self._by_accuser.items()
            for name in accusation.silent
            if accuser in askers
            and name in members
            and name != accuser
            and (name in self._by_accuser or name in unheard or heartbeat_times.get(name, 0.0) <= accusation.since)
        }
        accusers, accused_nodes = {accuser for accuser, _ in pairs}, {name for _, name in pairs}
        enough_accuse = len(accusers) >= len(accused_nodes)
        is_clear = enough_accuse and len(accusers | accused_nodes) >= running
        is_contested = not enough_accuse or bool(accusers & accused_nodes)
        until = self._first_at + VOTE_S
        if unheard and is_contested:
            until = max(until, self._reach_until)
        if not is_clear and now < until:
            return {}
        return choose_suspects(pairs, heartbeat_times)


def choose_suspects(
    pairs: Collection[tuple[str, str]], heartbeat_times: Mapping[str, float]
) -> dict[str, tuple[str, ...]]:
    """Who is suspected -> who asked, from (accuser, accused).

    The node with the most accusers comes first, and its own accusations no longer count: a node that lost its own
    network accuses everybody, and everybody accuses it. Among equals it is the one not heard from for longest.
    """
    by_accused: defaultdict[str, set[str]] = defaultdict(set)
    for accuser, accused_node in pairs:
        by_accused[accused_node].add(accuser)
    suspects: dict[str, tuple[str, ...]] = {}
    while by_accused:
        worst = max(by_accused, key=lambda name: (len(by_accused[name]), -heartbeat_times.get(name, 0.0), name))
        suspects[worst] = tuple(sorted(by_accused.pop(worst))[:MOST_ASKERS])
        for accused_node in [name for name, accusers in by_accused.items() if worst in accusers]:
            by_accused[accused_node].discard(worst)
            if not by_accused[accused_node]:
                del by_accused[accused_node]
    return suspects
