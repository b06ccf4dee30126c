"""What each round started from, and from which tier its ranks had it, from telemetry. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.runtime.protocol.holdings import Tier


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
        if len(place) == 3 and type(rank) is int and line.get("tier") in tuple(Tier):
            self._tiers.setdefault(place, {})[rank] = Tier(line["tier"])

    def by_round(self) -> tuple[StateRestored, ...]:
        """What was restored, by round."""
        return tuple(StateRestored(*place, Counter(tiers.values())) for place, tiers in sorted(self._tiers.items()))
