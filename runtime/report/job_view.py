"""What the page and the summary show about one job. Pure."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from everstep.runtime.job.certification import NO_REPLICA
from everstep.runtime.report import charts, flow
from everstep.runtime.report.activity import Activity
from everstep.runtime.report.charts import Chart
from everstep.runtime.report.history import History, Restart
from everstep.runtime.report.ledger import MOST_ENTRIES, Ledger, ledger
from everstep.runtime.report.read import Stacks
from everstep.runtime.report.restores import StateRestored
from everstep.runtime.report.timeline import Timeline, timeline

MOST_CHECKPOINTS = 30
"""Checkpoints with a line of their own: the newest ones."""


@dataclass(frozen=True)
class FaultView:
    """A fault with its cost, and where to read on."""

    number: int
    restart: Restart
    cost: Mapping[Activity, float]
    """Of its seconds, of one node."""
    logs: tuple[tuple[str, str], ...]
    """(node, path of its log below the run's `logs`)."""
    stacks: tuple[Stacks, ...]


@dataclass(frozen=True)
class CheckpointView:
    """A checkpoint that reached the store, or that a round started from."""

    round: int
    """The round that saved it."""
    iteration: int
    in_memory: float | None
    """When it was in the memory of the nodes; None: unknown."""
    in_store: float | None
    """When it was whole in the store; None: it was not."""
    restores: tuple[StateRestored, ...]
    """The rounds that started from it."""
    size: int
    """Bytes of all shards in the store; 0: unknown."""
    stall_s: float | None
    """How long rank 0 waited for it; None: unknown."""
    interval: str
    """How often, and why."""
    judgement: str = ""
    """What the comparison of its replicas gave; "": none is known."""


@dataclass(frozen=True)
class JobView:
    """What the page shows about one job."""

    name: str
    history: History
    ledger: Ledger | None
    charts: tuple[Chart, ...]
    timeline: Timeline | None
    faults: tuple[FaultView, ...]
    """The newest ones."""
    checkpoints: tuple[CheckpointView, ...]
    memory_saves: int
    """Saves to the memory of the nodes."""
    memory_stall_s: float
    """The median of their stalls."""
    staged_bytes: float
    """Of rank 0, by all saves."""
    overlap: float | None
    """Share of the copying that ran beside training; None: unknown."""
    missing: tuple[str, ...]
    comparisons: str = ""
    """What the comparisons of replicas gave, as sentences; "": there were none."""

    @property
    def saves_itself(self) -> bool:
        """Its saves are the script's own, such as `torch.save`: Everstep has kept none."""
        return self.history.is_launched and not self.staged_bytes and not self.checkpoints

    @property
    def restart_s(self) -> float:
        """Seconds that all restarts cost."""
        end = self.ledger.end if self.ledger else 0.0
        return sum(
            restart.seconds if restart.seconds is not None else max(end - restart.time, 0.0)
            for restart in self.history.restarts
        )


def view(
    name: str,
    history: History,
    steps: list[flow.Step],
    now: float,
    *,
    logs: Mapping[str, str] = {},
    stacks: tuple[Stacks, ...] = (),
    draws: bool = True,
) -> JobView:
    """A job with its ledger over the seconds of its step (of its journal, if the step is unknown).

    `logs`: the paths of the nodes' logs that the run's folder has. `draws`: with charts and timeline.
    """
    span = ledger(history, *window(name, history, steps, now))
    charts_drawn = (
        [chart for chart in (charts.loss_chart(history), charts.throughput_chart(history)) if chart] if draws else []
    )
    missing = []
    if not history.rounds:
        missing.append("No timeline: no round was formed.")
    if len(history.points) < 2:
        missing.append("No curves: fewer than two iterations were reported.")
    elif len(charts_drawn) < 2:
        missing.append("A curve is missing: iterations were reported without loss or without tokens.")
    if span is None:
        missing.append("No ledger: the job's beginning and end are unknown.")
    stalls = [point.stall_s for point in history.points if point.stall_s > 0 or point.staged_bytes]
    return JobView(
        name, history, span, tuple(charts_drawn), timeline(history, span) if span and draws else None,
        tuple(_faults(history, span, logs, stacks)), tuple(_checkpoints(history)), len(stalls),
        median(stalls) if stalls else 0.0, sum(point.staged_bytes for point in history.points), _overlap(history),
        tuple(missing), _comparisons(history),
    )  # fmt: skip


def _overlap(history: History) -> float | None:
    copied = sum(point.copy_s for point in history.points)
    stalled = sum(min(point.stall_s, point.copy_s) for point in history.points)
    return 1 - stalled / copied if copied else None


def _faults(
    history: History, span: Ledger | None, logs: Mapping[str, str], stacks: tuple[Stacks, ...]
) -> list[FaultView]:
    older = max(len(history.restarts) - MOST_ENTRIES, 0)
    views = []
    for number, restart in enumerate(history.restarts[older:], older + 1):
        nodes = dict.fromkeys([restart.node, *(node for node, _ in restart.ended)])
        own = tuple((node, logs[node]) for node in nodes if node in logs)
        dumps = tuple(dump for dump in stacks if dump.round == restart.round)
        views.append(FaultView(number, restart, span.cost_of(restart) if span else {}, own, dumps))
    return views


def _checkpoints(history: History) -> list[CheckpointView]:
    """The newest ones, by round and iteration."""
    stored = {(commit.round, commit.iteration): commit.time for commit in history.commits}
    restores = defaultdict[tuple[int, int], list[StateRestored]](list)
    for restored in history.states_restored:
        restores[restored.from_round, restored.iteration].append(restored)
    places = frozenset(sorted({*stored, *restores})[-MOST_CHECKPOINTS:])
    saves = {place: point for point in history.points if (place := (point.round, point.iteration)) in places}
    views = []
    for place in sorted(places):
        save, iteration = saves.get(place), place[1]
        interval = next((why for since, why in reversed(history.intervals) if since <= iteration), "")
        views.append(
            CheckpointView(
                *place,
                in_memory=save.time if save and save.staged_bytes else None,
                in_store=stored.get(place),
                restores=tuple(restores[place]),
                size=history.stored_bytes.get(place, 0),
                stall_s=save.stall_s if save else None,
                interval=interval if place in stored else "",
                judgement=_judgement(history, place),
            )
        )
    return views


def _judgement(history: History, place: tuple[int, int]) -> str:
    judgement = history.judgements.get(place)
    return f"{'certified' if judgement.is_sound else 'rejected'}: {judgement.detail}" if judgement else ""


def _comparisons(history: History) -> str:
    """How many states were compared, and what that gave, as sentences; "": none was."""
    judgements = history.judgements.values()
    if not judgements:
        return ""
    rejected_count = sum(not judgement.is_sound for judgement in judgements)
    alone_count = sum(judgement.detail == NO_REPLICA for judgement in judgements)
    text = f"Of {len(judgements)} states, {len(judgements) - rejected_count} are certified, {rejected_count} rejected."
    if alone_count:
        text += f" {alone_count} of those certified had no replica to compare: a flipped bit in them does not show."
    return text


def window(name: str, history: History, steps: list[flow.Step], now: float) -> tuple[float, float]:
    """Begin and end of the step that ran this job, else of the job; equal if neither is known.

    While it runs, it ends with the newest thing that is known: what came after that nobody has reported yet.
    """
    last = max(
        [
            history.end or 0.0,
            *(point.time for point in history.points),
            *(r.begin for r in history.rounds),
            history.newest,
        ],
        default=0.0,
    )
    step = next((s for s in steps if s.begin is not None and s.name == name), None)
    if step is not None and step.begin is not None:
        return step.begin, step.end or min(max(last, step.begin), now)
    return (history.begin, last) if history.begin is not None else (0.0, 0.0)
