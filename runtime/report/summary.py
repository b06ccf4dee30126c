"""A run's report as data and as Markdown, for terminals and programs: what the page says, without drawings. Pure."""

from typing import Any

from everstep.runtime.report import facts, flow
from everstep.runtime.report.history import Restart
from everstep.runtime.report.page import JobView, format_seconds, view, what_next
from everstep.runtime.report.read import Run


def summary(run: Run, now: float) -> dict[str, Any]:
    """The run as of `now` (Unix seconds), as plain data. Seconds and shares are numbers; unknown ones are None."""
    steps = flow.steps(run, now)
    phase = run.phase or "Unknown"
    return {
        "run": run.name,
        "phase": phase,
        "next": what_next(run, phase, steps),
        "outcome": dict(facts.outcome(run.steps)),
        "steps": [
            {"name": step.name, "phase": step.phase, "seconds": step.seconds, "message": step.message} for step in steps
        ],
        "jobs": [_job(view(name, history, steps, now)) for name, history in run.jobs.items()],
        "notes": list(run.notes),
    }


def _job(job: JobView) -> dict[str, Any]:
    span, history = job.ledger, job.history
    return {
        "name": job.name,
        "result": history.result,
        "reason": history.reason,
        "iteration": max((point.iteration for point in history.points), default=0),
        "goodput": None if span is None else span.goodput,
        "seconds": None if span is None else span.seconds,
        "ledger": []
        if span is None
        else [
            {"part": entry.part.value, "label": entry.label, "seconds": entry.seconds, "share": entry.share}
            for entry in span.entries
        ],
        "restarts": [_restart(one) for one in job.restarts],
        "checkpoints": [iteration for _, iteration in history.commits],
    }


def _restart(one: Restart) -> dict[str, Any]:
    return {
        "time": one.time, "what": one.what, "node": one.node, "reason": one.reason, "decision": one.decision,
        "seconds": one.seconds, "lost_iterations": one.lost, "error": one.error,
    }  # fmt: skip


def markdown(told: dict[str, Any]) -> str:
    """The summary as Markdown."""
    lines = [f"# {told['run']}: {told['phase']}", "", told["next"]]
    lines += [f"- {name}: {value}" for name, value in told["outcome"].items()]
    if told["steps"]:
        rows = [[one["name"], one["phase"], format_seconds(one["seconds"]), one["message"]] for one in told["steps"]]
        lines += ["", "## Steps", "", *_table(["step", "phase", "time", "message"], rows)]
    for job in told["jobs"]:
        lines += ["", f"## {job['name']}", ""]
        good = "unknown" if job["goodput"] is None else f"{job['goodput'] * 100:.1f} %"
        lines.append(f"Iteration {job['iteration']}, goodput {good}. {job['reason']}".rstrip())
        if job["ledger"]:
            rows = [
                [entry["label"], format_seconds(entry["seconds"]), f"{entry['share'] * 100:.1f} %"]
                for entry in job["ledger"]
            ]
            lines += ["", *_table(["seconds spent on", "time", "share"], rows)]
        if job["restarts"]:
            rows = [
                [one["what"], one["reason"], one["decision"], format_seconds(one["seconds"])] for one in job["restarts"]
            ]
            lines += ["", *_table(["fault", "reason", "decision", "cost"], rows)]
    lines += ["", *(f"Note: {note}" for note in told["notes"])]
    return "\n".join(lines).rstrip() + "\n"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    every = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in every]


def _cell(text: str) -> str:
    """One cell: a bar would begin another, a line break another row, and `<` HTML."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
