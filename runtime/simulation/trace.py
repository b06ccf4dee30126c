"""Which machines fail when, and for how long: drawn from rates with a seed, or read from a file."""

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge

HOUR = 3600.0


@dataclass(frozen=True)
class Failure:
    """Something that fails at one time."""

    time: float
    """Seconds from the beginning."""
    machines: tuple[int, ...]
    """All that fail at once, by number."""
    silent: bool = False
    """They fall silent instead of reporting it."""
    process: bool = False
    """Only a training process dies: the machine stays."""
    repair_s: float = 0.0
    """How long the machines are away."""


@dataclass(frozen=True)
class Trace:
    """All failures of a span of time, in order."""

    seconds: float
    machines: int
    failures: tuple[Failure, ...]
    bad: frozenset[int] = frozenset()
    """Machines of the bad batch."""
    left_out: int = 0
    """Failures of the file that come after the span."""


@dataclass(frozen=True)
class Rates:
    """How often what fails. Hours are means of exponential distributions; 0: never."""

    mtbf_h: float = 6349.0
    """Mean time between failures of one machine. One failure each 3.1 h on 2,048 machines is 6,349 h (Llama 3)."""
    process_share: float = 0.2
    """Share of failures that only end a process."""
    silent_share: float = 0.2
    """Share of failures after which the machine says nothing."""
    burst_h: float = 0.0
    """Mean time between losses of a whole switch."""
    burst_machines: int = 32
    """Machines under one switch."""
    bad_share: float = 0.0
    """Share of the machines that belong to a bad batch."""
    bad_factor: float = 20.0
    """How much more often these fail."""
    repair_h: float = 4.0
    """Mean time to repair."""


def draw_trace(machines: int, seconds: float, rates: Rates, seed: int) -> Trace:
    """Draw a trace. The same arguments give the same one."""
    chance = random.Random(f"trace {seed}")
    bad = frozenset(chance.sample(range(machines), round(rates.bad_share * machines)))
    good = [number for number in range(machines) if number not in bad]
    singles = [
        _singles(chance, good, seconds, rates, 1.0),
        _singles(chance, sorted(bad), seconds, rates, rates.bad_factor),
    ]
    bursts = _bursts(chance, machines, seconds, rates)
    return Trace(seconds, machines, tuple(merge(*singles, bursts, key=lambda failure: failure.time)), bad)


def _singles(chance: random.Random, machines: list[int], seconds: float, rates: Rates, factor: float) -> list[Failure]:
    if not machines or not rates.mtbf_h:
        return []
    failures, time, mean = [], 0.0, rates.mtbf_h * HOUR / factor / len(machines)
    while (time := time + chance.expovariate(1 / mean)) < seconds:
        who, kind = chance.choice(machines), chance.random()
        process = kind < rates.process_share
        silent = not process and kind < rates.process_share + rates.silent_share
        repair = 0.0 if process else chance.expovariate(1 / (rates.repair_h * HOUR))
        failures.append(Failure(time, (who,), silent, process, repair))
    return failures


def _bursts(chance: random.Random, machines: int, seconds: float, rates: Rates) -> list[Failure]:
    if not rates.burst_h:
        return []
    failures, time = [], 0.0
    while (time := time + chance.expovariate(1 / (rates.burst_h * HOUR))) < seconds:
        first = chance.randrange(-(-machines // rates.burst_machines)) * rates.burst_machines
        lost_machines = tuple(range(first, min(first + rates.burst_machines, machines)))
        failures.append(
            Failure(time, lost_machines, silent=True, repair_s=chance.expovariate(1 / (rates.repair_h * HOUR)))
        )
    return failures


def parse_trace(lines: Iterable[str], machines: int, seconds: float) -> Trace:
    """Read `HOURS MACHINES KIND REPAIR_HOURS` lines: `3.1 17 node 4`, `9 32-63 silent 2`, `11.2 5 process 0`.

    What comes after these seconds is left out, and counted. Raises ValueError with one line. `#` begins a comment.
    """
    failures = sorted(_parse_lines(lines, machines), key=lambda line: line.time)
    within = tuple(failure for failure in failures if failure.time < seconds)
    return Trace(seconds, machines, within, left_out=len(failures) - len(within))


def _parse_lines(lines: Iterable[str], machines: int) -> Iterator[Failure]:
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            hours, who, kind, repair = words
            time, repair_s = float(hours) * HOUR, float(repair) * HOUR
            first, _, last = who.partition("-")
            lowest, highest = int(first), int(last or first)
            if kind not in ("node", "silent", "process") or not 0 <= lowest <= highest < machines:
                raise ValueError
            if not 0 <= time < math.inf or not 0 <= repair_s < math.inf:
                raise ValueError
            yield Failure(time, tuple(range(lowest, highest + 1)), kind == "silent", kind == "process", repair_s)
        except ValueError:
            form = f"HOURS MACHINE[-MACHINE] node|silent|process REPAIR_HOURS, machines 0 to {machines - 1}"
            raise ValueError(f"line {number}: {line.strip()!r}; write {form}") from None
