"""The page's data of one run: plain values for JSON. Text of a run stays text; the page never makes HTML of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from everstep.cli.ui.sources import OpenedRun
from everstep.runtime.job.status import job_status
from everstep.runtime.journal.journal import JournalError, read_state
from everstep.runtime.report import facts, flow
from everstep.runtime.report.activity import Activity
from everstep.runtime.report.history import History
from everstep.runtime.report.job_view import JobView, view
from everstep.runtime.report.page import what_next
from everstep.runtime.report.telemetry import Point
from everstep.runtime.report.timeline import COLUMNS, Timeline
from everstep.runtime.store import Store, StoreError

MOST_POINTS = 600
"""Points of a curve that can be pointed at."""
MOST_EVENTS = 80
MOST_LANES = 24
_COLOURS = {activity: number for number, activity in enumerate(Activity)}
MOST_COMMITS = 40


def snapshot(run_opened: OpenedRun, now: float) -> dict[str, Any]:
    """The run as of `now` (Unix seconds)."""
    run, entry = run_opened.run, run_opened.entry
    steps = flow.steps(run, now)
    spec = run.workflow.get("spec") or {}
    parameters = (spec.get("arguments") or {}).get("parameters") or ()
    return {
        "place": entry.place,
        "name": run.name,
        "title": entry.title,
        "uid": run.uid,
        "phase": entry.phase,
        "began": entry.began,
        "ended": entry.ended,
        "message": entry.line if entry.ended else "",
        "next": what_next(run, run.phase or entry.phase, steps),
        "outcome": facts.outcome(run.steps),
        "uses": facts.uses(run.steps),
        "steps": [_step(step, run.steps.get(step.name) or {}) for step in steps],
        "across": _drawing(steps, across=True),
        "down": _drawing(steps, across=False),
        "jobs": [_job(run_opened, view(name, history, steps, now)) for name, history in run.jobs.items()],
        "parameters": [[str(parameter.get("name")), str(parameter.get("value", ""))] for parameter in parameters],
        "notes": list(run.notes),
    }


def _step(step: flow.Step, summary: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": step.name, "phase": step.phase, "began": step.begin, "ended": step.end, "seconds": step.seconds,
        "message": step.message, "attempts": step.attempts, "summary": str(summary.get("summary") or ""),
        "log": step.log,
    }  # fmt: skip


def _drawing(steps: list[flow.Step], *, across: bool) -> dict[str, Any]:
    drawing = flow.draw(steps, across=across)
    boxes = [{"step": box.step.name, "x": box.x, "y": box.y} for box in drawing.boxes]
    size = {"width": drawing.width, "height": drawing.height, "boxWidth": flow.WIDTH, "boxHeight": flow.HEIGHT}
    return {**size, "boxes": boxes, "arrows": list(drawing.arrows)}


def _job(run_opened: OpenedRun, job: JobView) -> dict[str, Any]:
    history, span = job.history, job.ledger
    uid = run_opened.run.uid
    curve = _current_curve(history)
    return {
        "name": job.name,
        "job": f"{uid}-{job.name}",
        "status": _status(run_opened.store, f"{uid}-{job.name}"),
        "iteration": curve[-1].iteration if curve else 0,
        "loss": next((point.loss for point in reversed(curve) if point.loss is not None), None),
        "throughput": _throughput(curve),
        "pace": _pace(curve),
        "goodput": span.goodput if span else None,
        "lost": job.restart_s,
        "restarts": len(history.restarts),
        "result": history.result,
        "reason": history.reason,
        "error": history.error,
        "ledger": [
            _activity(entry.activity) | {"seconds": entry.seconds, "share": entry.share} for entry in span.entries
        ]
        if span
        else [],
        "nodeSeconds": span.node_seconds if span else None,
        "charts": [asdict(chart) for chart in job.charts],
        "points": _points(history),
        "timeline": _timeline(job.timeline) if job.timeline else None,
        "commits": [[commit.time, commit.iteration] for commit in history.commits[-MOST_COMMITS:]],
        "commitCount": len(history.commits),
        "interval": history.intervals[-1][1] if history.intervals else "",
        "events": events(history),
    }


def _activity(activity: Activity) -> dict[str, Any]:
    """Its name, and the number of its colour, which is that of the report."""
    return {"activity": activity.value, "colour": _COLOURS[activity]}


def _timeline(timeline_drawn: Timeline) -> dict[str, Any]:
    """Lanes and rounds in percent of the axis."""
    lanes = [
        {
            "name": lane.name,
            "bars": [
                _activity(bar.activity) | {"left": bar.left * 100 / COLUMNS, "width": bar.width * 100 / COLUMNS}
                for bar in lane.bars
            ],
        }
        for lane in timeline_drawn.lanes[:MOST_LANES]
    ]
    drawn_nodes = sum(len(lane.nodes) for lane in timeline_drawn.lanes[:MOST_LANES])
    hidden_count = timeline_drawn.hidden + sum(len(lane.nodes) for lane in timeline_drawn.lanes) - drawn_nodes
    common = {"description": timeline_drawn.description, "hidden": hidden_count, "lanes": lanes}
    return common | {
        "rounds": [asdict(round_) for round_ in timeline_drawn.rounds],
        "marks": [asdict(mark) for mark in timeline_drawn.marks],
        "ticks": [asdict(tick) for tick in timeline_drawn.ticks],
    }


def _status(store: Store | None, job: str) -> dict[str, Any] | None:
    """What `everstep status` says; None if the journal cannot be read now."""
    if store is None:
        return None
    try:
        return job_status(read_state(store, job))
    except (JournalError, StoreError):
        return None


def _current_curve(history: History) -> list[Point]:
    """The curve up to the newest iteration; after a rollback the rest of it is of earlier rounds."""
    _, newest = max(((point.round, point.iteration) for point in history.points), default=(0, 0))
    return [point for point in history.curve if point.iteration <= newest]


def _throughput(curve: Sequence[Point]) -> float | None:
    """Tokens per second over the last iterations."""
    some = [point for point in curve[-20:] if point.tokens is not None and point.seconds > 0]
    seconds = sum(point.seconds for point in some)
    return sum(point.tokens or 0.0 for point in some) / seconds if seconds else None


def _pace(curve: Sequence[Point]) -> float | None:
    """Seconds of an iteration, the median of the last ones."""
    return median([point.seconds / point.count for point in curve[-50:]]) if curve else None


def _points(history: History) -> list[list[float | None]]:
    """(iteration, loss, tokens per second, Unix time), evenly thinned, the newest always among them."""
    step = max(-(-len(history.curve) // MOST_POINTS), 1)
    some = history.curve[::-step][::-1]
    return [
        [
            point.iteration,
            point.loss,
            point.tokens / point.seconds if point.tokens and point.seconds > 0 else None,
            point.time,
        ]
        for point in some
    ]


def events(history: History) -> list[dict[str, Any]]:
    """What happened to a job, the newest first."""
    latest = sorted(_events(history), key=lambda event: -float(event["time"]))
    return latest[:MOST_EVENTS]


def _events(history: History) -> Iterator[dict[str, Any]]:
    for number, restart in enumerate(history.restarts, 1):
        cost = (
            f"training again after {restart.seconds:.1f} s" if restart.seconds is not None else "not training again yet"
        )
        lost_text = (
            f", {restart.lost} iteration{'' if restart.lost == 1 else 's'} computed again" if restart.lost else ""
        )
        yield {
            "time": restart.time, "kind": "fault" if restart.node else "change",
            "text": f"{restart.what}: {restart.reason}",
            "more": f"{restart.decision}; {cost}{lost_text}", "cause": restart.cause, "error": restart.error,
            "number": number, "node": restart.node,
        }  # fmt: skip
    for time, detail in history.slow:
        yield {"time": time, "kind": "slow", "text": detail, "more": ""}
    for round_ in history.rounds:
        count = len(round_.nodes)
        source = "from the beginning" if round_.restored is None else f"from iteration {round_.restored}"
        text = f"round {round_.number}: {count} node{'' if count == 1 else 's'}, {source}"
        yield {"time": round_.begin, "kind": "round", "text": text, "more": round_.reason}
    for time in history.takeovers:
        text = "a new master took the job over"
        yield {"time": time, "kind": "master", "text": text, "more": "its nodes kept training"}
    for attempt in history.attempts:
        text = f"the job {attempt.result} at iteration {attempt.iteration}, and was started again"
        yield {"time": attempt.end, "kind": "end", "text": text, "more": attempt.reason}
    if history.end is not None:
        yield {"time": history.end, "kind": "end", "text": f"the job {history.result}", "more": history.reason}
