"""What it costs that a script is watched from outside: `python -m benchmarks.watching`. Budget: <= 0.5 % of its time.

Whole iterations with and without watching differ by less than the machine's noise: 15 % of an iteration on a busy
machine, even in CPU time. So each part is measured by itself, where the training calls it, after an iteration that has
gone through more memory than the caches hold:

- the hook after the optimizer's step, and the one around the data loader's next batch: the CPU time of the calls;
- torch's flight recorder: the CPU time of the process for a collective after an iteration, with and without it, times
  the collectives of an iteration. Counted only if this torch keeps none by itself: else a plain script pays it, too;
- the thread that counts collectives: at any moment of every second pair of iterations it samples once; in a script it
  does so in few of them. With and without a sample, the process's CPU time of an iteration differs by its cost; times
  the samples of a second. The middle half of the differences counts, as a fault of the machine disturbs single ones;
  the other parts are means of all calls.

All of that counts as if training waited for it, and is divided by the CPU time of an iteration, which is the time that
it takes where each rank has a CPU. The result is the median of processes that train one after the other; its 95 %
confidence interval is that of a median, from their order, whatever their distribution. The budget is kept if the
interval lies within it. Two checks are less exact: what whole iterations with and without both hooks and the recorder
differ by, which finds what a part costs elsewhere; and how much longer an iteration with a sample takes by the clock.
Takes about six minutes. Not counted: the agent's own process, which reads the boards, `eval()` and `torch.save`.
"""

import argparse
import math
import multiprocessing
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.watching_process import Parts, measure_process

BUDGET = 0.005
PROCESSES = 16
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Share:
    """What watching costs, as a share of the time without it. Below 0: less than the noise."""

    median: float
    low: float
    high: float
    """The confidence interval."""

    def __str__(self) -> str:
        return f"{self.median:.2%} ({self.low:.2%} to {self.high:.2%})"


@dataclass(frozen=True)
class Overhead:
    """What watching costs, over the processes."""

    cost: Share
    """What a plain script with this torch does not pay."""
    recorded_by_default: bool
    """Not counted then: the recorder."""
    with_recorder: Share
    by_turns: Share
    """The check: whole iterations with and without hooks and recorder, in CPU time."""
    sample_wall: Share
    """The other check: how much longer an iteration with a sample takes, times the samples of a second."""
    middle: Parts
    """The process in the middle, by its cost."""

    @property
    def holds(self) -> bool:
        """Is it within the budget, beyond the noise?"""
        return self.cost.high <= BUDGET

    @property
    def word(self) -> str:
        """`holds`, `NOT`, or that the noise does not let one say."""
        if self.holds:
            return "holds"
        return "NOT" if self.cost.low > BUDGET else "NOT DECIDED: the noise is larger than the budget"

    def shortest_s(self, recorder: bool) -> float:
        """The length of iterations whose cost is the budget; that of shorter ones is above."""
        left = BUDGET - self.middle.samples_per_s * self.middle.sample.cpu_s
        return self.middle.each_s(recorder) / left if left > 0 else math.inf

    @property
    def parts(self) -> str:
        """What each part costs, and the checks: a line each."""
        middle, by_default = self.middle, "by itself" if self.recorded_by_default else "for us"
        shortest, with_recorder = (f"{self.shortest_s(recorder) * 1e3:.1f} ms on" for recorder in (False, True))
        return (
            f"  hooks: {middle.hooks_s * 1e6:.0f} us an iteration; thread: {middle.samples_per_s} samples a second, "
            f"{middle.sample.cpu_s * 1e6:.0f} us each; without the recorder within the budget from {shortest}\n"
            f"  recorder (this torch keeps collectives {by_default}): {middle.collectives:.0f} an iteration, "
            f"{middle.record_s * 1e6:.0f} us each; with it {self.with_recorder}, within it from {with_recorder}\n"
            f"  checks: hooks and recorder by turns {self.by_turns}; samples by the clock {self.sample_wall}"
        )

    def __str__(self) -> str:
        return f"{self.cost} of iterations of {self.middle.plain.cpu_s * 1e3:.1f} ms"


def share_of(shares: Sequence[float]) -> Share:
    """The median of independent results, and the confidence interval of it."""
    ordered, count = sorted(shares), len(shares)
    rank, outside = -1, 0.0
    while (outside := outside + 2 * math.comb(count, rank + 1) / 2**count) <= 1 - CONFIDENCE:
        rank += 1
    low, high = (ordered[rank], ordered[count - 1 - rank]) if rank >= 0 else (-math.inf, math.inf)
    return Share(statistics.median(ordered), low, high)


def overhead(processes: int = PROCESSES) -> Overhead:
    """Measure in so many processes, one after the other."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        measured = list(pool.imap(measure_process, range(processes)))
    by_default = measured[0].recorded_by_default
    middle = sorted(measured, key=lambda parts: parts.share(not by_default))[len(measured) // 2]
    return Overhead(
        share_of([parts.share(not by_default) for parts in measured]),
        by_default,
        share_of([parts.share(True) for parts in measured]),
        share_of([parts.by_turns for parts in measured]),
        share_of([parts.sample.wall_s * parts.samples_per_s for parts in measured]),
        middle,
    )


def main() -> None:
    """Print the result; exit code 1 unless the budget is kept."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.watching", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=PROCESSES, help=f"how many train (default: {PROCESSES})")
    measured = overhead(max(parser.parse_args().processes, 1))
    print(f"watching a script: {measured}, budget {BUDGET:.1%}: {measured.word}\n{measured.parts}")
    raise SystemExit(not measured.holds)


if __name__ == "__main__":
    main()
