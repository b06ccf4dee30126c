"""A job's telemetry, as far as the report needs it: iterations, intervals, restores, devices, hosts. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from everstep.runtime.report.device_use import DeviceUse, DeviceUses
from everstep.runtime.report.restores import Restores, StateRestored
from everstep.runtime.watch.host_use import HostUse, HostUses


@dataclass(frozen=True, slots=True)
class Point:
    """One finished iteration from its telemetry, or several that one line tells of."""

    time: float
    """When the iteration finished."""
    round: int
    iteration: int
    """The newest one."""
    loss: float | None = None
    tokens: float | None = None
    seconds: float = 0.0
    """From the previous iteration (or the start of the workers' loop) to its end, including the stall."""
    stall_s: float = 0.0
    """Seconds of these in which nothing was computed because of checkpoints: the device's, where copies run beside it,
    so some are of the saves before."""
    evaluation_s: float = 0.0
    """Seconds of these that were spent evaluating, if the script says so."""
    staged_bytes: float = 0.0
    """Bytes of rank 0's state that this iteration saved in memory; 0: none."""
    copy_s: float = 0.0
    """Seconds that copying took of the save which ended with it; what is not in `stall_s` ran beside training."""
    restore_s: float = 0.0
    """In the first iteration of a round: how long rank 0 restored its state before."""
    first_sample: int | None = None
    """Number of the first sample of its batch, as rank 0 read it: the same for any number of ranks."""
    count: int = 1
    """How many iterations these are."""


class Figures(NamedTuple):
    """What telemetry says."""

    points: list[Point]
    """By time."""
    intervals: tuple[tuple[int, str], ...]
    """(iteration, text) of each change of the persist interval."""
    states_restored: tuple[StateRestored, ...]
    """By round."""
    devices: Mapping[str, DeviceUse]
    """By node."""
    hosts: Mapping[str, HostUse]
    """By node."""


def read_telemetry(lines: Iterable[Mapping[str, Any]]) -> Figures:
    """Read telemetry lines in any order; those of other kinds, and damaged ones, are skipped.

    Of the lines about iterations only rank 0's count: every other rank reports the same. Several lines about one
    iteration of a round make one point.
    """
    by_round: dict[int, dict[int, Point]] = {}
    intervals, devices, hosts, restores = list[Mapping[str, Any]](), DeviceUses(), HostUses(), Restores()
    for line in lines:
        devices.add(line)
        hosts.add(line)
        restores.add(line)
        if line.get("kind") == "interval":
            intervals.append(line)
        if line.get("kind") not in (None, "iteration") or line.get("rank"):
            continue
        time, iteration = _number(line.get("time")), _number(line.get("iteration"))
        if time is None or iteration is None:
            continue
        point = Point(
            time=time,
            round=int(_number(line.get("round")) or 0),
            iteration=int(iteration),
            loss=_number(line.get("loss")),
            tokens=_number(line.get("tokens")),
            seconds=max(_number(line.get("seconds")) or 0.0, 0.0),
            stall_s=max(_number(line.get("stall_s")) or 0.0, 0.0),
            evaluation_s=max(_number(line.get("evaluation_s")) or 0.0, 0.0),
            staged_bytes=max(_number(line.get("staged_bytes")) or 0.0, 0.0),
            copy_s=max(_number(line.get("copy_s")) or 0.0, 0.0),
            restore_s=max(_number(line.get("restore_s")) or 0.0, 0.0),
            first_sample=None if (first := _number(line.get("first_sample"))) is None else int(first),
            count=max(int(_number(line.get("iterations")) or 1), 1),
        )
        by_round.setdefault(point.round, {})[point.iteration] = point
    points = [point for some in by_round.values() for point in some.values()]
    points.sort(key=lambda point: (point.time, point.round, point.iteration))
    return Figures(points, tuple(_intervals(intervals)), restores.by_round(), devices.by_node, hosts.by_node)


def _intervals(lines: Iterable[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """The changes of the interval; a node that takes over persisting repeats the current one."""
    changes: list[tuple[int, str]] = []
    for line in sorted(lines, key=lambda line: _number(line.get("time")) or 0.0):
        reason = str(line.get("reason", ""))
        if not changes or changes[-1][1] != reason:
            changes.append((int(_number(line.get("iteration")) or 0), reason))
    return changes


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
