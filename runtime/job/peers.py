"""Which node keeps the copies of which shards: one on another machine, in another zone where that is possible. Pure.

Invariant: where a round's members are on two machines or more, no node's copies are kept on its own machine. So one
power cut never takes both.
"""

from collections.abc import Callable, Iterable, Sequence

from everstep.runtime.protocol.rounds import Member


def copy_keepers(members: Sequence[Member]) -> list[int | None]:
    """For each member, in rank order, the index of the member that keeps its copies; None if all are on one machine.

    Each keeps the copies of at most one other, unless more than half of the members are on one machine: then these are
    spread evenly over the rest. Another zone is preferred only while each still keeps at most one's copies.
    """
    zones = _groups(members, lambda member: member.zone or "?")
    if len(zones) > 1 and "?" not in zones and 2 * max(map(len, zones.values())) <= len(members):
        return _shift_keepers(zones.values(), len(members))
    return _shift_keepers(_groups(members, lambda member: member.host).values(), len(members))


def _groups(members: Sequence[Member], key: Callable[[Member], str]) -> dict[str, list[int]]:
    """Indices of the members by key; within a group by machine."""
    groups: dict[str, list[int]] = {}
    for index, member in enumerate(members):
        groups.setdefault(key(member), []).append(index)
    return {name: sorted(group, key=lambda index: (members[index].host, index)) for name, group in groups.items()}


def _shift_keepers(groups: Iterable[list[int]], count: int) -> list[int | None]:
    """A keeper from another group for each of `count` indices.

    All indices are put in a row, group by group. Shifting it by the size of the largest group leads every index out of
    its own, if no group has more than half of them.
    """
    groups_by_size = sorted(groups, key=len, reverse=True)
    row = [index for group in groups_by_size for index in group]
    largest = len(groups_by_size[0]) if groups_by_size else 0
    keepers: list[int | None] = [None] * count
    if largest == count:
        return keepers
    others = row[largest:]
    for place, index in enumerate(row):
        if 2 * largest <= count:
            keepers[index] = row[(place + largest) % count]
        else:
            keepers[index] = others[place % len(others)] if place < largest else row[place - largest]
    return keepers
