"""Stacks of many ranks as one tree: each call with the ranks that are in it, and those that are not. Pure.

Invariant: a path from the root is in the tree with rank r exactly if one of r's threads has that path as a prefix. The
tree is the same whatever the order of the ranks and threads.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from everstep.runtime.watch.stacks import Frame, RankStacks


@dataclass
class Call:
    """A call (or thread, at the top) and what is called from there."""

    name: str
    """`function@file:line`; at the top the thread's name."""
    ranks: frozenset[int] = frozenset()
    calls: "dict[str, Call]" = field(default_factory=dict)


@dataclass(frozen=True)
class MergedStacks:
    """All ranks' stacks."""

    ranks: frozenset[int]
    """All that were asked for, also those without stacks."""
    threads: dict[str, Call]


def merge(stacks: Iterable[RankStacks]) -> MergedStacks:
    """Merge the stacks; threads of one name are one."""
    everybody: set[int] = set()
    top: dict[str, Call] = {}
    for stack in stacks:
        everybody.add(stack.rank)
        for thread in stack.threads:
            level = top
            for name in (thread.name, *(frame.place for frame in thread.frames)):
                call = level.setdefault(name, Call(name))
                call.ranks |= {stack.rank}
                level = call.calls
    return MergedStacks(frozenset(everybody), _in_order(top))


def walk(calls: dict[str, Call], depth: int = 0) -> Iterator[tuple[int, Call]]:
    """(Depth, call) of each call, callers first."""
    for call in calls.values():
        yield depth, call
        yield from walk(call.calls, depth + 1)


def fold_ranks(ranks: Iterable[int]) -> str:
    """`0-3,9`."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def label(call: Call, everybody: frozenset[int]) -> str:
    """`function@file:line@ranks-here|ranks-missing`."""
    return f"{call.name}@{fold_ranks(call.ranks)}|{fold_ranks(everybody - call.ranks)}"


def text(merged_stacks: MergedStacks) -> str:
    """The tree, one call a line, indented by its depth."""
    return "".join(f"{'  ' * depth}{label(call, merged_stacks.ranks)}\n" for depth, call in walk(merged_stacks.threads))


def odd_ones(stacks: Sequence[RankStacks]) -> str:
    """One sentence: which ranks are out of step with most, by their main threads. Files without their folders."""
    places: dict[int, Frame] = {}
    for stack in stacks:
        if (main := stack.main) is not None and main.frames:
            places[stack.rank] = _own_frame(main.frames)
    silent = sorted({stack.rank for stack in stacks} - set(places))
    groups = Counter(places.values()).most_common()
    if not groups:
        return f"no rank's stack could be read: {stacks[0].failure}" if stacks else "there are no ranks"
    usual = groups[0][0]
    parts = [f"rank{_s(silent)} {fold_ranks(silent)}: no stack"] if silent else []
    for place, _ in groups[1:]:
        ranks = [rank for rank, frame in places.items() if frame == place]
        parts.append(f"rank{_s(ranks)} {fold_ranks(ranks)} of {len(stacks)} {_is(ranks)} in {place.short_place}")
    usual_ranks = [rank for rank, frame in places.items() if frame == usual]
    most = f"rank{_s(usual_ranks)} {fold_ranks(usual_ranks)} {_is(usual_ranks)} in {usual.short_place}"
    if not parts and len(stacks) > 1:
        return f"all {len(stacks)} ranks are in {usual.short_place}"
    return "; ".join([*parts, most])


def _own_frame(frames: Sequence[Frame]) -> Frame:
    """The innermost call in a file that is not an installed library's: there people look first."""
    own = [frame for frame in frames if is_users(frame)]
    return own[-1] if own else frames[-1]


def is_users(frame: Frame) -> bool:
    """Whether the call is in the user's own code, as far as its path says."""
    libraries = ("/site-packages/", "/dist-packages/", "/lib/python", "/everstep/", "<frozen", "/runtime/agent/")
    return not frame.is_native and not any(part in frame.file for part in libraries)


def _s(ranks: Sequence[int]) -> str:
    return "" if len(ranks) == 1 else "s"


def _is(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _in_order(calls: dict[str, Call]) -> dict[str, Call]:
    """The calls sorted: those of most ranks first."""
    in_order = sorted(calls.values(), key=lambda call: (-len(call.ranks), call.name))
    return {call.name: Call(call.name, call.ranks, _in_order(call.calls)) for call in in_order}
