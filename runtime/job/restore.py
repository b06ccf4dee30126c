"""What a round restores: a pure choice among the shards in memory and in the store."""

from collections import defaultdict
from collections.abc import Collection, Iterable

from msgspec.structs import replace

from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.state import State
from everstep.runtime.protocol.holdings import Flaw, Holding, Refusal, Restore

MAX_LISTED = 8
"""Runs of shards that the reason of a choice lists."""
MEMORY_SOURCES = 4
"""Sources in memory that are listed per shard; a node that holds the shard itself needs none of them."""


def holdings(state: State) -> list[Holding]:
    """Every shard that can be read now: from the memory of waiting nodes, and from the store; without refused sources.

    Leaving nodes come last, so that a round depends on them only for shards that no other node holds.
    """
    waiting = [node for node in state.nodes.values() if node.phase is NodePhase.WAITING]
    waiting.sort(key=lambda node: (node.is_leaving, node.name))
    memory = [holding for node in waiting for holding in node.holdings if holding.node == node.name]
    in_store = [shard for checkpoint in state.checkpoints.values() for shard in checkpoint.shards]
    refusals_by_place: defaultdict[tuple[int, int], list[Refusal]] = defaultdict(list)
    for refusal in state.refused:
        refusals_by_place[refusal.round, refusal.iteration].append(refusal)
    return [
        holding
        for holding in memory + in_store
        if not any(refusal.covers(holding) for refusal in refusals_by_place.get((holding.round, holding.iteration), ()))
    ]


def newest_restore(state: State, certified_only: bool = False) -> Restore | None:
    """What the next round restores: the newest complete state without a doubt, else the newest complete state.

    Invariant: `certified_only` => that state is certified.
    """
    available = holdings(state)
    if certified_only:
        certified_places = set(state.certified)
        available = [holding for holding in available if (holding.round, holding.iteration) in certified_places]
    trusted_choice = choose_restore(
        holding for holding in available if not any(doubt.covers(holding) for doubt in state.doubted)
    )
    every = choose_restore(available)
    if (
        trusted_choice is None
        or every is None
        or (trusted_choice.round, trusted_choice.iteration) == (every.round, every.iteration)
    ):
        return every
    doubt = state.doubted[-1]
    why = f"after iteration {doubt.iteration} of round {doubt.round}, restored in round {doubt.until}, was not finite"
    return replace(trusted_choice, reason=f"{trusted_choice.reason}; a step back, for the loss {why}")


def unread_checkpoints(state: State) -> tuple[Refusal, ...]:
    """Refusals of objects in the store that may be intact but could not be read."""
    return tuple(refusal for refusal in state.refused if refusal.key and refusal.flaw is not Flaw.DAMAGED)


def choose_restore(holdings: Iterable[Holding]) -> Restore | None:
    """The newest (round, iteration) of which every shard can be read, with its sources; None: start from nothing.

    Shards of one (round, iteration) with different shard counts are never mixed. Memory comes before the store.
    """
    groups: defaultdict[tuple[int, int, int], list[Holding]] = defaultdict(list)
    for holding in holdings:
        groups[holding.round, holding.iteration, holding.shards].append(holding)
    for (round_, iteration, shards), group in sorted(groups.items(), reverse=True):
        by_shard: defaultdict[int, list[Holding]] = defaultdict(list)
        for holding in group:
            by_shard[holding.shard].append(holding)
        if shards < 1 or not set(range(shards)) <= set(by_shard):
            continue
        sources = tuple(source for shard in range(shards) for source in _best_sources(by_shard[shard]))
        where = _location_summary([any(holding.node for holding in by_shard[shard]) for shard in range(shards)])
        return Restore(round_, iteration, sources, f"iteration {iteration} of round {round_} is whole {where}")
    return None


def _location_summary(in_memory: list[bool]) -> str:
    """Where the shards are; runs of shards that only the store has are listed as ranges."""
    if all(in_memory):
        return "in memory"
    if not any(in_memory):
        return "in the store"
    edges = [n for n in range(len(in_memory)) if not n or in_memory[n] != in_memory[n - 1]]
    runs = [(a, b - 1) for a, b in zip(edges, [*edges[1:], len(in_memory)], strict=True) if not in_memory[a]]
    named_runs = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:MAX_LISTED])
    more = f" and {len(runs) - MAX_LISTED} more runs" if len(runs) > MAX_LISTED else ""
    return f"in memory but for shards {named_runs}{more}, which only the store has"


def _best_sources(group: list[Holding]) -> list[Holding]:
    memory = [holding for holding in group if holding.node]
    in_store = sorted((holding for holding in group if not holding.node), key=lambda holding: holding.key)
    return memory[:MEMORY_SOURCES] + in_store[:1]


def sole_sources(restore: Restore | None, leaving: Collection[str]) -> set[str]:
    """The leaving nodes that serve a shard that is in the memory of no other node."""
    by_shard: defaultdict[int, set[str]] = defaultdict(set)
    for source in restore.sources if restore else ():
        if source.node:
            by_shard[source.shard].add(source.node)
    return {node for nodes in by_shard.values() if nodes <= set(leaving) for node in nodes}
