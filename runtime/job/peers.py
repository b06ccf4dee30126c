"""Which nodes keep the copies of which shards: on other machines, in other zones where that is possible. Pure.

Invariant: no two of a node and the keepers of its copies are on one machine. So when as many machines lose their power
at once as there are copies, one of these nodes is left.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from everstep.runtime.protocol.rounds import Member


def copy_keepers(members: Sequence[Member], copies: int = 1) -> list[tuple[int, ...]]:
    """For each member, in rank order, the indices of the members that keep its copies: `copies` of them, or as many as
    there are other machines.

    Each member keeps the copies of as many others as keep its own, unless one machine has more than its share of the
    members: then the rest is spread evenly over the others. Other zones come first, as far as their sizes allow that.
    """
    machines, zones = _groups(members, lambda member: member.host), _groups(members, lambda member: member.zone or "?")
    copies = min(copies, len(machines) - 1)
    by_zone = "?" not in zones and _shifts(zones, members) > 0
    groups = zones if by_zone else machines
    keepers = _shift(list(groups.values()), min(copies, _shifts(groups, members)), len(members))
    return _spread(members, machines, keepers, copies)


def _groups(members: Sequence[Member], key: Callable[[Member], str]) -> dict[str, list[int]]:
    """Indices of the members by key, the largest group first."""
    groups: dict[str, list[int]] = {}
    for index, member in enumerate(members):
        groups.setdefault(key(member), []).append(index)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def _shifts(groups: dict[str, list[int]], members: Sequence[Member]) -> int:
    """How many keepers `_shift` can give each."""
    return len(members) // max(map(len, groups.values()), default=1) - 1


def _shift(groups: list[list[int]], copies: int, count: int) -> list[list[int]]:
    """`copies` keepers for each of `count` indices, all from different groups, and from others than its own.

    All indices are put in a row, group by group. Two places of which each is at least the size of the largest group
    behind the other, around the row, are of different groups.
    """
    row = [index for group in groups for index in group]
    keepers: list[list[int]] = [[] for _ in row]
    for place, index in enumerate(row):
        keepers[index] = [row[(place + lap * len(groups[0])) % count] for lap in range(1, copies + 1)]
    return keepers


def _spread(
    members: Sequence[Member], machines: dict[str, list[int]], keepers: list[list[int]], copies: int
) -> list[tuple[int, ...]]:
    """Give each member more keepers until it has `copies`, on machines of which it has none: those first whose members
    keep the fewest copies."""
    groups = list(machines.values())
    loads = [(0, number, 0) for number in range(len(groups))]
    """(Rounds that the machine's members have had, its number, copies given to it), a heap."""
    for lap in range(copies):
        for index in (index for group in groups for index in group):
            if len(keepers[index]) > lap:
                continue
            used = {members[index].host, *(members[keeper].host for keeper in keepers[index])}
            skipped: list[tuple[int, int, int]] = []
            while members[groups[loads[0][1]][0]].host in used:
                skipped.append(heappop(loads))
            _, number, given = heappop(loads)
            group = groups[number]
            keepers[index].append(group[given % len(group)])
            for load in ((given + 1) // len(group), number, given + 1), *skipped:
                heappush(loads, load)
    return [tuple(each) for each in keepers]
