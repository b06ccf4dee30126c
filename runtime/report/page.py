"""The page: one self-contained HTML file. jinja2 escapes everything that comes from a run."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from everstep.runtime.display.pages import environment
from everstep.runtime.report import facts, flow
from everstep.runtime.report.activity import Activity
from everstep.runtime.report.charts import short
from everstep.runtime.report.job_view import view
from everstep.runtime.report.ledger import Ledger
from everstep.runtime.report.read import Run
from everstep.runtime.report.timeline import COLUMNS


def render(run: Run, now: float) -> str:
    """The page of that run as of `now` (Unix seconds)."""
    steps = flow.steps(run, now)
    jobs = [
        view(name, content, steps, now, logs=run.node_logs.get(name, {}), stacks=run.stacks.get(name, ()))
        for name, content in run.jobs.items()
    ]
    phase = run.phase or ("Failed" if any(step.phase in ("Failed", "Error") for step in steps) else "Unknown")
    template = environment(Path(__file__).parent, _FILTERS).get_template("page.html")
    return template.render(
        run=run,
        phase=phase,
        begin=min(_begins(run, steps), default=None),
        duration=_duration(run, steps, now),
        now=now,
        steps=steps,
        across=flow.draw(steps, across=True),
        down=flow.draw(steps, across=False),
        box=(flow.WIDTH, flow.HEIGHT),
        failed=[step for step in steps if step.phase in ("Failed", "Error")],
        next=what_next(run, phase, steps),
        outcome=facts.outcome(run.steps),
        uses=facts.uses(run.steps),
        jobs=jobs,
        colours={activity: f"a{number}" for number, activity in enumerate(Activity)},
        columns=COLUMNS,
        parameters=facts.parameters(run.workflow),
        settings=facts.settings(run.steps),
        environment=facts.environments(run.steps),
        facts=[facts.step_facts(name, content) for name, content in run.steps.items() if name != run.own],
    )


def overview(run: Run, now: float) -> str:
    """The jobs in one line: `1 restart, 0.9 s lost, goodput 93 %`; says so if there is no job."""
    steps = flow.steps(run, now)
    lines = []
    for name, history in run.jobs.items():
        job = view(name, history, steps, now, draws=False)
        count = len(history.restarts)
        line = f"{count} restart{'' if count == 1 else 's'}"
        if job.ledger is not None:
            lost_text = f", {format_seconds(job.restart_s)} lost" if count else ""
            line += lost_text + _goodput(job.ledger)
        lines.append(line)
    return "; ".join(lines) or "no training"


def _goodput(span: Ledger) -> str:
    return ", nothing was left to do" if span.goodput is None else f", goodput {span.goodput * 100:.0f} %"


def what_next(run: Run, phase: str, steps: list[flow.Step]) -> str:
    """One sentence for the reader: what to do now."""
    if run.is_job:
        return _what_next_for_job(run)
    codes = {step.exit_code for step in steps if step.phase in ("Failed", "Error")}
    again = f"run the pipeline again with --name {run.name}: it continues at the unfinished step"
    if run.on_cluster:
        again = f"`argo retry {run.name}` continues at the unfinished step"
    if phase == "Succeeded":
        return "All steps are done."
    if phase in ("Running", "Pending"):
        return "The run has not ended; this page shows its state so far."
    if phase != "Succeeded" and any(job.result == "stopped" for job in run.jobs.values()):
        return f"The run was stopped, and its nodes ended: {again}."
    if "1" in codes:
        return f"The training's own error: fix the script or its data, then {again}."
    if "2" in codes:
        return f"Bad input: fix what the message names, then {again}, or start a new run."
    if "3" in codes:
        return f"Too few healthy nodes: see the verdict of check, or lower --min-nodes, then {again}."
    return f"Read the message, then {again}."


def _what_next_for_job(run: Run) -> str:
    history = next(iter(run.jobs.values()), None)
    if history is None:
        return "Nothing is known of this job."
    if history.result == "succeeded":
        return "The job is done."
    if not history.result:
        newest = _format_time(max([history.newest, *(point.time for point in history.points[-1:])]))
        return f"The job has not ended; the newest that is known of it is of {newest}."
    start = "start the same `everstep launch` again, with its --store and --rdzv-id"
    if not history.is_launched:
        start = "run its pipeline again with --name and the run's name"
    commits = history.commits
    place = f"it continues at iteration {commits[-1].iteration}" if commits else "it starts at the first iteration"
    why = "Read the reason, fix what it names, then " if history.result == "failed" else "The job was stopped: "
    return f"{why}{start}: {place}."


def _duration(run: Run, steps: list[flow.Step], now: float) -> float | None:
    if run.duration_s is not None:
        return run.duration_s
    begins = _begins(run, steps)
    ends = [step.end or now for step in steps if step.begin is not None]
    if run.is_job:
        ends = [history.end or history.newest for history in run.jobs.values()]
    return max(ends) - min(begins) if begins else None


def _begins(run: Run, steps: list[flow.Step]) -> list[float]:
    """When the steps began; of a job alone, when it did."""
    times = [history.begin for history in run.jobs.values()] if run.is_job else [step.begin for step in steps]
    return [time for time in times if time is not None]


def format_seconds(seconds: float | None) -> str:
    """`0.9 s`, `1 min 12 s`, `2 h 03 min`."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def _format_time(time: float | None, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    return "–" if time is None else datetime.fromtimestamp(time, UTC).strftime(form)


def _format_cost(cost: Mapping[Activity, float]) -> str:
    """`1.2 s start-up and imports, 0.3 s rendezvous`: the largest first, without what rounds to nothing."""
    parts = sorted(cost.items(), key=lambda part: -part[1])
    return ", ".join(f"{format_seconds(seconds)} {activity.value}" for activity, seconds in parts if seconds >= 0.05)


def _format_bytes(size: int) -> str:
    return f"{short(size)}B" if size >= 10_000 else f"{size} B" if size else "–"


_FILTERS = {
    "span": format_seconds,
    "clock": _format_time,
    "percent": lambda share: f"{share * 100:.1f} %",
    "cost": _format_cost,
    "bytes": _format_bytes,
}
