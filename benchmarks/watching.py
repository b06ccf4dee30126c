"""What it costs that a script is watched from outside: `python -m benchmarks.watching`. Budget: <= 0.5 % of its time.

Whole iterations with and without watching differ by less than the machine's noise: 15 % of an iteration on a busy
machine, even in CPU time. So each part is measured by itself, where the training calls it, after an iteration that has
gone through more memory than the caches hold:

- the hook after the optimizer's step, and the one around the data loader's next batch: the CPU time of the calls;
- torch's flight recorder: the CPU time of the process for a collective after an iteration, with and without it, times
  the collectives of an iteration. Counted only if this torch keeps none by itself: else a plain script pays it, too;
- the thread that counts collectives: at any moment of every second pair of iterations it samples once; in a script it
  does so in few of them. With and without a sample, iterations differ by its cost, in wall-clock time by what training
  waits for it, too; times the samples of a second. The middle half of the differences counts, as a fault of the machine
  disturbs single ones. The other parts are means of all calls.

The result is the median of processes that train one after the other; its 95 % confidence interval is that of a median,
from their order, whatever their distribution. The budget is kept if the intervals of wall-clock and of CPU time lie
within it. As a check, whole iterations with and without both hooks and the recorder are compared: it finds what a part
costs elsewhere, as far as the noise lets it. Takes about six minutes. Not counted: the agent's own process, which reads
the boards, `eval()` and `torch.save`.
"""

import argparse
import math
import multiprocessing
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.watching_process import measure_process

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

    wall: Share
    cpu: Share
    """What a plain script with this torch does not pay."""
    recorded_by_default: bool
    """Not counted then: the recorder. Otherwise it is."""
    cpu_with_recorder: Share
    by_turns: Share
    """The check: whole iterations with and without hooks and recorder, in CPU time."""
    plain_s: float
    """Wall-clock seconds of an iteration without watching: the median, as are the following."""
    hooks_s: float
    collectives: float
    record_s: float
    sample_s: float
    """CPU time."""
    samples_per_s: int

    @property
    def holds(self) -> bool:
        """Is it within the budget, beyond the noise?"""
        return max(self.wall.high, self.cpu.high) <= BUDGET

    @property
    def word(self) -> str:
        """`holds`, `NOT`, or that the noise does not let one say."""
        if self.holds:
            return "holds"
        return (
            "NOT" if max(self.wall.low, self.cpu.low) > BUDGET else "NOT DECIDED: the noise is larger than the budget"
        )

    def shortest_s(self, recorder: bool) -> float:
        """The length of iterations whose cost is the budget; that of shorter ones is above."""
        left = BUDGET - self.samples_per_s * self.sample_s
        each_s = self.hooks_s + (self.collectives * self.record_s if recorder else 0.0)
        return each_s / left if left > 0 else math.inf

    @property
    def parts(self) -> str:
        """What each part costs, a line each."""
        by_default = "by itself" if self.recorded_by_default else "for us"
        shortest, with_recorder = (f"{self.shortest_s(recorder) * 1e3:.1f} ms on" for recorder in (False, True))
        return (
            f"  hooks: {self.hooks_s * 1e6:.0f} us an iteration; thread: {self.samples_per_s} samples a second, "
            f"{self.sample_s * 1e6:.0f} us each; within the budget from iterations of {shortest}\n"
            f"  recorder (this torch keeps collectives {by_default}): {self.collectives:.0f} an iteration, "
            f"{self.record_s * 1e6:.0f} us each; with it {self.cpu_with_recorder} of CPU time, from {with_recorder}\n"
            f"  check, hooks and recorder by turns: {self.by_turns} of CPU time"
        )

    def __str__(self) -> str:
        return f"{self.wall} of wall-clock time, {self.cpu} of CPU time of iterations of {self.plain_s * 1e3:.1f} ms"


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
    return Overhead(
        share_of([parts.wall(not by_default) for parts in measured]),
        share_of([parts.cpu(not by_default) for parts in measured]),
        by_default,
        share_of([parts.cpu(True) for parts in measured]),
        share_of([parts.by_turns for parts in measured]),
        statistics.median(parts.plain.wall_s for parts in measured),
        statistics.median(parts.hooks_s for parts in measured),
        measured[0].collectives,
        statistics.median(parts.record_s for parts in measured),
        statistics.median(parts.sample.cpu_s for parts in measured),
        measured[0].samples_per_s,
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
