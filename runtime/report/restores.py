"""What each round started from, and from which tier its ranks had it, from telemetry. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Tier(StrEnum):
    """Where a state is kept, as `Fetched.source` names it; nearest first."""

    MEMORY = "memory"
    """Of the rank's own node."""
    PEER = "peer"
    """The memory of another node."""
    STORE = "store"
    SHARDS = "shards"
    """It was saved by another number of ranks: parts of several shards, from wherever these are."""


@dataclass(frozen=True)
class StateRestored:
    """A state that a round started from."""

    round: int
    """The round that started from it."""
    from_round: int
    """The round that saved it."""
    iteration: int
    ranks: Mapping[Tier, int]
    """How many ranks had it from each tier."""

    def __str__(self) -> str:
        places = [tier for tier in Tier if self.ranks.get(tier)]
        if len(places) == 1:
            return f"round {self.round} from {places[0]}"
        counts = [f"{count} from {tier}" for tier in places if (count := self.ranks[tier])]
        return f"round {self.round}, ranks: {', '.join(counts)}"


class Restores:
    """Collects the lines of all ranks; a line that came twice counts once."""

    def __init__(self) -> None:
        self._tiers: dict[tuple[int, int, int], dict[int, Tier]] = {}
        """By round, the round that saved the state, and its iteration: the tier of each rank."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in a line of telemetry; those of other kinds, and damaged ones, are skipped."""
        if line.get("kind") != "restored":
            return
        numbers = [line.get(name) for name in ("round", "from_round", "iteration", "rank")]
        place, rank = tuple(number for number in numbers[:3] if type(number) is int), numbers[3]
        tier = _tier_of(str(line.get("source", "")))
        if len(place) == 3 and type(rank) is int and tier is not None:
            self._tiers.setdefault(place, {})[rank] = tier

    def by_round(self) -> tuple[StateRestored, ...]:
        """What was restored, by round."""
        return tuple(StateRestored(*place, Counter(tiers.values())) for place, tiers in sorted(self._tiers.items()))


def _tier_of(source: str) -> Tier | None:
    """The tier of `memory`, `peer NODE`, `store KEY` or `N shards`; None: of none."""
    word, _, rest = source.partition(" ")
    if word.isdigit() and rest == Tier.SHARDS:
        return Tier.SHARDS
    return next((tier for tier in (Tier.MEMORY, Tier.PEER, Tier.STORE) if tier == word), None)
