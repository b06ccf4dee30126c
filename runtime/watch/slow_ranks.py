"""Which rank is slow, from how long each waits for the others, and its slow part. Pure.

In data-parallel training all ranks take the same time per iteration: fast ones wait in collectives for the slow one.
A rank's own time is what it does not spend there. What explains at least half of what a slow rank takes longer than the
others is named: its node's memory, disk or CPU first, then data and saves, else its computation, or its device if the
driver says that it is slowed down. If no rank's own time
is long, but all wait, it is the network, where the kernel's figures of the connections show that.
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from statistics import median
from typing import NamedTuple

import msgspec

from everstep.runtime.watch.board_fields import Board
from everstep.runtime.watch.merge import fold_ranks

SLOW_FACTOR = 1.5
"""A straggler's own time is more than this many times the median of all."""
_WORTH = 0.1
"""The excess is at least this share of an iteration: a smaller one costs little."""
_CERTAIN = 3.0
"""The shares of samples of two ranks must differ by this many standard errors. Those of equal ranks do in one of 300
windows, with 64 ranks in one of 600: `tests/watch/test_slow_by_chance.py` counts."""
_FEWEST_SAMPLES = 10
_PAUSED = 3.0
"""If the mean iteration of a window takes more than this many times the median, a pause made it long: no pace."""
_EXPLAINS = 0.5
_THRASHES_HZ = 50.0
_SLOW_LINK_S = 0.02
"""Round trips within a cluster take well below a millisecond."""
_LOSSY_HZ = 1.0
"""Segments sent again in a second."""


class SlowPart(StrEnum):
    """What of a rank is slow."""

    COMPUTE = "compute"
    DATA = "data"
    STAGING = "staging"
    CPU = "host: CPU"
    MEMORY = "host: memory"
    DISK = "host: disk"
    GPU = "host: GPU"
    NETWORK = "communication"


class HostUse(NamedTuple):
    """What a process has taken of its machine so far, or between two moments."""

    cpu_wait_s: float = 0.0
    """Its main thread could run and had no CPU."""
    disk_wait_s: float = 0.0
    """Its main thread was in an uninterruptible wait."""
    major_faults: int = 0
    resent: int = 0
    """TCP segments that its connections sent again."""
    rtt_s: float = 0.0
    """The longest smoothed round trip of its connections to other machines, now."""

    def since(self, before: "HostUse") -> "HostUse":
        """What came after that moment."""
        return HostUse(
            max(self.cpu_wait_s - before.cpu_wait_s, 0.0), max(self.disk_wait_s - before.disk_wait_s, 0.0),
            max(self.major_faults - before.major_faults, 0), max(self.resent - before.resent, 0), self.rtt_s,
        )  # fmt: skip


class Pace(msgspec.Struct, frozen=True):
    """A rank's times over a window; times are seconds per iteration."""

    rank: int
    iterations: int
    samples: int
    """How often it was looked at, at moments that chance chose."""
    waited: float
    """Share of these in which it was in a collective, 0 to 1."""
    iteration_s: float
    """0: it finished no iteration, or too little is known."""
    data_s: float = 0.0
    staging_s: float = 0.0
    cpu_wait_s: float = 0.0
    disk_wait_s: float = 0.0
    faults_hz: float = 0.0
    resent_hz: float = 0.0
    rtt_s: float = 0.0
    lowered: str = ""
    """Why its device's clocks are lower than they should be."""

    @property
    def own_s(self) -> float:
        """Outside of collectives."""
        return (1 - self.waited) * self.iteration_s

    @property
    def is_measured(self) -> bool:
        """Whether its times are known. What no rank can have measured, but another program may send, tells nothing."""
        return 0 < self.iteration_s < math.inf and self.samples > 0 and 0 <= self.waited <= 1


class SlowVerdict(msgspec.Struct, frozen=True):
    """Who is slow, what of it, and one sentence about it."""

    ranks: tuple[int, ...]
    """The slowest first."""
    part: SlowPart
    sentence: str


def pace(before: Board, after: Board, seconds: float, use: HostUse | None = None) -> Pace:
    """The times of a rank between two readings of its board, `seconds` apart. `use`: of its machine, between them."""
    use = use or HostUse()
    iterations, samples = after.iteration - before.iteration, after.samples - before.samples
    if before.pid != after.pid or before.round != after.round or iterations < 1 or samples < _FEWEST_SAMPLES:
        return Pace(after.rank, max(iterations, 0), max(samples, 0), 0.0, 0.0)
    if after.pace_s and seconds / iterations > _PAUSED * after.pace_s:
        return Pace(after.rank, iterations, samples, 0.0, 0.0)
    waited = min(max((after.waits - before.waits) / samples, 0.0), 1.0)
    return Pace(
        after.rank, iterations, samples, waited, seconds / iterations,
        (after.data_s - before.data_s) / iterations, (after.staging_s - before.staging_s) / iterations,
        use.cpu_wait_s / iterations, use.disk_wait_s / iterations,
        use.major_faults / seconds, use.resent / seconds, use.rtt_s,
    )  # fmt: skip


def slow_ranks(paces: Sequence[Pace]) -> list[Pace]:
    """The ranks whose own time is more than SLOW_FACTOR times the median of all: never more than half of them.

    The median is the lower one, so that of two ranks one can be slow. A rank that may be the slowest by chance, or that
    costs the others little, as communication takes nearly all their time, is not slow.
    """
    measured_paces = [rank_pace for rank_pace in paces if rank_pace.is_measured]
    if not measured_paces:
        return []
    usual = sorted(measured_paces, key=lambda rank_pace: rank_pace.own_s)[(len(measured_paces) - 1) // 2]
    return [
        rank_pace for rank_pace in measured_paces
        if rank_pace.own_s > SLOW_FACTOR * usual.own_s
        and rank_pace.own_s - usual.own_s >= _WORTH * rank_pace.iteration_s
        and _standard_errors(rank_pace, usual) >= _CERTAIN
    ]  # fmt: skip


def _standard_errors(rank_pace: Pace, usual: Pace) -> float:
    """By how many standard errors the shares of their own time differ: the test of two proportions, pooled."""
    samples = rank_pace.samples + usual.samples
    own = (rank_pace.samples * (1 - rank_pace.waited) + usual.samples * (1 - usual.waited)) / samples
    error = math.sqrt(own * (1 - own) * (1 / rank_pace.samples + 1 / usual.samples))
    return (usual.waited - rank_pace.waited) / error if error else 0.0


def judge_paces(paces: Sequence[Pace]) -> SlowVerdict | None:
    """Who keeps the others waiting iteration after iteration; None: nobody. The order of the ranks does not matter."""
    measured_paces = sorted(
        (rank_pace for rank_pace in paces if rank_pace.is_measured), key=lambda rank_pace: rank_pace.rank
    )
    slow = sorted(slow_ranks(measured_paces), key=lambda rank_pace: (-rank_pace.own_s, rank_pace.rank))
    if not slow:
        return _judge_network(measured_paces)
    others = [rank_pace for rank_pace in measured_paces if rank_pace not in slow]
    part, detail = _explain(slow[0], others)
    return SlowVerdict(
        tuple(rank_pace.rank for rank_pace in slow), part, f"{_who(slow, others)}: {part.value}: {detail}"
    )


def sentence(paces: Sequence[Pace]) -> str:
    """Who is slow, in one line; empty: nobody."""
    verdict = judge_paces(paces)
    return verdict.sentence if verdict else ""


def _who(slow: Sequence[Pace], others: Sequence[Pace]) -> str:
    usual = median(rank_pace.own_s for rank_pace in others) if others else 0.0
    who = (
        f"rank {slow[0].rank} is" if len(slow) == 1 else f"ranks {fold_ranks(rank_pace.rank for rank_pace in slow)} are"
    )
    return f"{who} slow, {slow[0].own_s:.3g} s of its own per iteration; the others take {usual:.3g} s and wait for it"


def _explain(worst: Pace, others: Sequence[Pace]) -> tuple[SlowPart, str]:
    """What takes the slowest rank longer than the others."""

    def more(value: Callable[[Pace], float]) -> float:
        return value(worst) - (median(map(value, others)) if others else 0.0)

    enough = _EXPLAINS * more(lambda rank_pace: rank_pace.own_s)
    faults = more(lambda rank_pace: rank_pace.faults_hz)
    disk, cpu = more(lambda rank_pace: rank_pace.disk_wait_s), more(lambda rank_pace: rank_pace.cpu_wait_s)
    data, staging = more(lambda rank_pace: rank_pace.data_s), more(lambda rank_pace: rank_pace.staging_s)
    at = " while it loads data" if data >= enough else " while it saves" if staging >= enough else ""
    if faults >= _THRASHES_HZ:
        return SlowPart.MEMORY, f"it reads {faults:.0f} pages a second back from disk{at}"
    if disk >= enough:
        return SlowPart.DISK, f"it waits {disk:.3g} s longer for it{at}"
    if cpu >= enough:
        return SlowPart.CPU, f"it waits {cpu:.3g} s longer for one, others on its node use it{at}"
    if data >= enough:
        return SlowPart.DATA, f"it waits {data:.3g} s longer for its data loader"
    if staging >= enough:
        return SlowPart.STAGING, f"saves take {staging:.3g} s longer"
    if worst.lowered and any(rank_pace.lowered != worst.lowered for rank_pace in others):
        return SlowPart.GPU, f"its clocks are lowered: {worst.lowered}"
    return SlowPart.COMPUTE, "it waits for neither data, nor saves, nor its host's CPU or disk"


def _judge_network(measured_paces: Sequence[Pace]) -> SlowVerdict | None:
    """The ranks whose connections are slow or lossy, if most of everybody's time goes into collectives."""
    if len(measured_paces) < 2 or median(rank_pace.waited for rank_pace in measured_paces) < _EXPLAINS:
        return None
    usual = min(rank_pace.rtt_s for rank_pace in measured_paces)
    bad = [
        rank_pace
        for rank_pace in measured_paces
        if rank_pace.resent_hz >= _LOSSY_HZ or rank_pace.rtt_s >= max(_SLOW_LINK_S, 3 * usual)
    ]
    if not bad and usual >= _SLOW_LINK_S:
        bad = list(measured_paces)
    if not bad:
        return None
    worst = max(bad, key=lambda rank_pace: (rank_pace.rtt_s, rank_pace.resent_hz, -rank_pace.rank))
    ranks = sorted(bad, key=lambda rank_pace: (-rank_pace.rtt_s, rank_pace.rank))
    return SlowVerdict(
        tuple(rank_pace.rank for rank_pace in ranks),
        SlowPart.NETWORK,
        f"ranks wait {median(rank_pace.waited for rank_pace in measured_paces):.0%} of the time in collectives, and "
        "the connections of "
        f"rank{'' if len(ranks) == 1 else 's'} {fold_ranks(rank_pace.rank for rank_pace in ranks)} are slow: "
        f"communication: round trips of up to {worst.rtt_s * 1e3:.0f} ms, "
        f"{worst.resent_hz:.1f} segments sent again a second",
    )
