"""What a fault did to a training, compared with an undisturbed one. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everstep.runtime.report.history import Point
from everstep.steps.verdict.config import Experiment

SELDOM, FURTHEST = 0.02, 5.0
"""With another number of nodes, sums are rounded differently and losses vary: this share of them may differ by more
than the tolerance, none by more than this many times it. With the model of the drill and the same samples, no loss of 2
or of 4 ranks was further than 0.8 % from that of 3 ranks in 150 iterations; in a drill of 300, 2 were further than 2 %.

This cannot hide another order of samples, which is compared exactly (`compare_samples`). Losses alone could not tell
it: of two neighbouring batches that are swapped, only two losses show."""
KNOWN = 0.9
"""Share of the iterations whose loss must be known: those just before a kill are often not reported."""


@dataclass(frozen=True)
class Check:
    """One cell of the table."""

    text: str
    good: bool


@dataclass(frozen=True)
class Row:
    """One experiment."""

    name: str
    fault: str
    """What happened, with its evidence; or why nothing did."""
    fired: bool
    state: Check
    samples: Check
    lost: Check
    seconds: Check
    slower_s: float | None
    """Seconds that all iterations took longer than the reference's. A busy machine shows here, too."""
    refused: bool = False

    @property
    def good(self) -> bool:
        """Does everything hold?"""
        return self.fired and all(check.good for check in (self.state, self.samples, self.lost, self.seconds))


def _no_tensors() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class FinalState:
    """The newest checkpoint of a training: by default there is none that can be read."""

    iteration: int = 0
    shards: frozenset[tuple[int, str]] = frozenset()
    """(Number, digest) of each."""
    size: int = 0
    """Bytes of all."""
    read: Callable[[], Mapping[str, Any]] = _no_tensors
    """Reads all of it into memory: torch tensors by name."""


@dataclass(frozen=True)
class Training:
    """What is known of one training."""

    points: Sequence[Point]
    """Its reports by time."""
    state: FinalState
    result: str
    """How the job ended."""
    start_s: float = 0.0
    """From the job's beginning to its first iteration: its nodes' start, which differs most from place to place."""


def cost(points: Sequence[Point], moment: float) -> tuple[float, int]:
    """(longest time in seconds between two new iterations since that moment, iterations computed again since)."""
    newest, since, longest, again = 0, moment, 0.0, 0
    for point in points:
        if point.iteration <= newest:
            again += point.time > moment
            continue
        newest = point.iteration
        if point.time > moment:
            longest = max(longest, point.time - since)
        since = max(point.time, moment)
    return longest, again


def row(
    experiment: Experiment,
    fault_fired: Mapping[str, Any] | None,
    why: str,
    mine: Training,
    reference: Training,
    far: float,
) -> Row:
    """`fault_fired`: the fault's facts; None: it did not fire, because of `why`. `far`: the tolerance."""
    if fault_fired is None:
        none = Check("-", False)
        return Row(experiment.name, why, False, none, none, none, none, None)
    gap, again = cost(mine.points, float(fault_fired["time"]))
    where = f"{fault_fired['node']}: " if fault_fired.get("node") else ""
    return Row(
        experiment.name,
        f"{where}{fault_fired['evidence']}",
        True,
        compare_states(mine, reference, 0.0 if experiment.same else far),
        compare_samples(mine.points, reference.points, exact=experiment.same, far=far),
        Check(f"{again} (at most {experiment.lost})", again <= experiment.lost),
        _standstill(gap, experiment.seconds, reference.start_s if experiment.starts else 0.0),
        _duration(mine.points) - _duration(reference.points),
    )


def _standstill(gap: float, limit: float, start_s: float) -> Check:
    """`gap`: 0 if no iteration followed; `limit`: 0 is none; `start_s`: what a start of nodes may take besides."""
    if not gap:
        return Check("no new iteration after the fault: it met no training", False)
    if not limit:
        return Check(f"{gap:.1f} (no limit)", True)
    besides = f" and {start_s:.1f} for a start" if start_s else ""
    return Check(f"{gap:.1f} (at most {limit:g}{besides})", gap <= limit + start_s)


def refused_row(experiment: Experiment, why: str) -> Row:
    """For a fault that cannot be injected here."""
    none = Check("-", True)
    return Row(experiment.name, f"not possible here: {why}", False, none, none, none, none, None, True)


def _duration(points: Sequence[Point]) -> float:
    return points[-1].time - points[0].time if points else 0.0


def compare_states(mine: Training, reference: Training, far: float) -> Check:
    """The final states, byte for byte; if they differ, all their tensors, weights and optimizer."""
    if mine.result != "succeeded":
        return Check(f"the training {mine.result or 'did not end'}", False)
    state, expected = mine.state, reference.state
    if not expected.shards:
        return Check("nothing to compare: the undisturbed training left no readable checkpoint", False)
    if not state.shards:
        return Check("it left no readable checkpoint", False)
    if state.iteration != expected.iteration:
        return Check(f"of iteration {state.iteration}, not {expected.iteration}", False)
    if state.shards == expected.shards:
        return Check(f"{state.size / 1e6:.1f} MB the same, byte for byte", True)
    tensors, expected_tensors = state.read(), expected.read()
    if tensors.keys() != expected_tensors.keys():
        return Check(f"{len(tensors)} tensors, not {len(expected_tensors)}", False)
    if not tensors:
        return Check("the bytes differ, and the tensors of the state cannot be read as one", False)
    differing = [name for name, tensor in tensors.items() if not tensor.equal(expected_tensors[name])]
    if not differing:
        return Check(f"{len(tensors)} tensors the same", True)
    off = distance(tensors, expected_tensors)
    text = f"{len(differing)} of {len(tensors)} tensors differ, the whole by {off:.2g}"
    return Check(f"{text} (at most {far:g})", off <= far)


def distance(mine: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    """|mine - reference| / |reference| in the Euclidean norm, all tensors as one vector."""
    apart = whole = 0.0
    for name, expected in reference.items():
        tensor = mine[name]
        if tensor.shape != expected.shape:
            return float("inf")
        apart += float((tensor.double() - expected.double()).square().sum())
        whole += float(expected.double().square().sum())
    return (apart / max(whole, 1e-24)) ** 0.5


def compare_samples(mine: Sequence[Point], reference: Sequence[Point], *, exact: bool, far: float) -> Check:
    """Compare the order of the samples, exactly, and each iteration's loss.

    A batch begins with the same sample for any number of ranks, as the shares in rank order are the batch: so its first
    sample, as rank 0 read it, tells a batch that was swapped, left out, done twice, or drawn with another seed. The
    loss is the mean over all ranks: the same samples give the same one with the same weights, but for the order of the
    sums.

    Every report of an iteration counts, also of one that was computed again. A training that reports no loss is only
    known to have done each iteration.
    """
    first_samples = {point.iteration: point.first_sample for point in reference}
    swapped = [
        point.iteration for point in mine
        if point.first_sample is not None and first_samples.get(point.iteration) not in (None, point.first_sample)
    ]  # fmt: skip
    if swapped:
        return Check(f"{len(swapped)} batches have other samples, first that of iteration {swapped[0]}", False)
    reference_losses = {point.iteration: point.loss for point in reference if point.loss is not None}
    points = [(point.iteration, point.loss) for point in mine if point.loss is not None]
    if not reference_losses:
        last = max((point.iteration for point in mine), default=0)
        return Check(
            f"{last} iterations; no losses to compare", last == max((p.iteration for p in reference), default=0)
        )
    iterations_compared = {iteration for iteration, _ in points if iteration in reference_losses}
    limit = 0.0 if exact else far
    off = [(i, _apart(loss, reference_losses.get(i))) for i, loss in points]
    wrong = [(i, apart) for i, apart in off if apart > limit]
    if len(wrong) > (0 if exact else SELDOM * len(points)) or any(apart > FURTHEST * limit for _, apart in wrong):
        return Check(f"{len(wrong)} losses differ, first at iteration {wrong[0][0]}", False)
    more = f", {len(wrong)} further apart than {far:.0%}" if wrong else ""
    return Check(
        f"{len(iterations_compared)} of {len(reference_losses)} losses compared{more}",
        len(iterations_compared) >= KNOWN * len(reference_losses),
    )


def _apart(value: float, reference: float | None) -> float:
    """|value - reference| / |reference|; inf without a reference."""
    return math.inf if reference is None else abs(value - reference) / max(abs(reference), 1e-24)
