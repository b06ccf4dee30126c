"""A run's report as data and as Markdown, for terminals and programs: what the page says, without drawings. Pure."""

from dataclasses import asdict
from typing import Any

from everstep.runtime.display.terminal import as_text_lines
from everstep.runtime.report import facts, flow
from everstep.runtime.report.job_view import FaultView, JobView, view
from everstep.runtime.report.page import format_seconds, what_next
from everstep.runtime.report.read import Run

MOST_SLOW = 20
"""How many slow nodes are reported: the newest ones."""
MOST_PARAGRAPHS = 5
"""Faults that Markdown explains: the newest ones."""


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
        "jobs": [_job(view(name, history, steps, now, draws=False)) for name, history in run.jobs.items()],
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
        "badput": None if span is None else dict(span.badput()),
        "node_seconds": None if span is None else span.node_seconds,
        "ledger": []
        if span is None
        else [
            {"activity": entry.activity.value, "goodput_name": entry.goodput_name, "seconds": entry.seconds,
             "share": entry.share}
            for entry in span.entries
        ],
        "nodes": {}
        if span is None
        else {node.node: {activity.value: s for activity, s in node.seconds.items() if s} for node in span.nodes},
        "slow": [{"time": time, "detail": detail} for time, detail in history.slow[-MOST_SLOW:]],
        "faults": [_fault(fault) for fault in job.faults],
        "staged": {"saves": job.memory_saves, "bytes": job.staged_bytes, "overlap": job.overlap},
        "hosts": {node: asdict(use) for node, use in sorted(history.hosts.items())},
        "devices": {node: asdict(use) for node, use in sorted(history.devices.items())},
        "checkpoints": [
            {"round": checkpoint.round, "iteration": checkpoint.iteration, "in_memory": checkpoint.in_memory,
             "in_store": checkpoint.in_store, "bytes": checkpoint.size, "stall_s": checkpoint.stall_s,
             "interval": checkpoint.interval,
             "restores": [{"round": restored.round, "ranks": restored.ranks} for restored in checkpoint.restores]}
            for checkpoint in job.checkpoints
        ],
    }  # fmt: skip


def _fault(fault: FaultView) -> dict[str, Any]:
    restart = fault.restart
    return {
        "time": restart.time, "what": restart.what, "node": restart.node, "reason": restart.reason,
        "cause": restart.cause, "judged": restart.why, "decision": restart.decision, "seconds": restart.seconds,
        "lost_iterations": restart.lost,
        "cost": {activity.value: seconds for activity, seconds in fault.cost.items()}, "error": restart.error,
    }  # fmt: skip


def markdown(summary: dict[str, Any]) -> str:
    """The summary as Markdown."""
    lines = [f"# {summary['run']}: {summary['phase']}", "", summary["next"]]
    lines += [f"- {name}: {value}" for name, value in summary["outcome"].items()]
    if summary["steps"]:
        rows = [
            [step["name"], step["phase"], format_seconds(step["seconds"]), step["message"]] for step in summary["steps"]
        ]
        lines += ["", "## Steps", "", *_table(["step", "phase", "time", "message"], rows)]
    for job in summary["jobs"]:
        lines += ["", f"## {job['name']}", ""]
        good = "unknown" if job["goodput"] is None else f"{job['goodput'] * 100:.1f} %"
        lines.append(f"Iteration {job['iteration']}, goodput {good}. {job['reason']}".rstrip())
        if job["ledger"]:
            rows = [
                [entry["activity"], format_seconds(entry["seconds"]), f"{entry['share'] * 100:.1f} %"]
                for entry in job["ledger"]
            ]
            lines += ["", *_table(["node-seconds spent on", "time", "share"], rows)]
        lines += [line for entry in job["slow"] for line in ("", f"Slow: {_cell(entry['detail'])}.")]
        if job["faults"]:
            rows = [
                [fault["what"], fault["reason"], fault["decision"], format_seconds(fault["seconds"])]
                for fault in job["faults"]
            ]
            lines += ["", *_table(["fault", "reason", "decision", "cost"], rows)]
            lines += [line for fault in job["faults"][-MOST_PARAGRAPHS:] for line in ("", _cell(fault["cause"]))]
    lines += ["", *(f"Note: {note}" for note in summary["notes"])]
    return as_text_lines("\n".join(lines).rstrip()) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    every = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in every]


def _cell(text: str) -> str:
    """One cell: a bar would begin another, a line break another row, and `<` HTML."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
