"""Reads everything that a run left, once: the workflow, the steps' summaries, each job's journal and telemetry.

Missing or torn parts are not errors (a report matters most for failed runs) but lines in `Run.notes`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import msgspec

from everstep.runtime.job import records as job
from everstep.runtime.journal import segments
from everstep.runtime.report.history import History, HistoryRecord, history
from everstep.runtime.store import NoSuchKey, Store

MOST_STACKS, MOST_STACK_BYTES = 20, 20_000
_STACKS = re.compile(r"stacks-(\d+)-\d+\.txt$")
MOST_NOTES = 20
"""Unreadable lines of a journal that are named one by one."""


class _Kind(msgspec.Struct):
    kind: str


_KIND = msgspec.json.Decoder(_Kind)
_HISTORY_RECORD = msgspec.json.Decoder(HistoryRecord)
_NEEDED_KINDS = frozenset(kind.__name__ for kind in get_args(HistoryRecord))
_KNOWN_KINDS = frozenset(kind.__name__ for kind in (segments.Segment, *get_args(job.Record)))


@dataclass(frozen=True)
class Stacks:
    """What a node's ranks did while they hung."""

    round: int
    key: str
    """In the store."""
    text: str
    """Its first MOST_STACK_BYTES."""


@dataclass(frozen=True)
class Run:
    """The input of the page."""

    name: str
    uid: str = ""
    phase: str = ""
    """Argo's: Succeeded, Failed, Error, Running; empty: unknown."""
    duration_s: float | None = None
    failures: tuple[Mapping[str, Any], ...] = ()
    """Argo's `workflow.failures`: displayName, message, templateName, phase, podName, finishedAt."""
    workflow: Mapping[str, Any] = field(default_factory=dict)
    """Argo's Workflow, or empty."""
    graph: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The tasks that each task follows; used without a Workflow."""
    on_cluster: bool = False
    """Argo ran it on a cluster."""
    steps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Per step: summary, facts, seconds, and when it ended."""
    jobs: Mapping[str, History] = field(default_factory=dict)
    """Per job, by its name without the workflow's uid: `train`."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """The last lines of a node's log, by Argo's node id."""
    node_logs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Per job, by node: the path of its log, below `logs` beside the page."""
    stacks: Mapping[str, tuple[Stacks, ...]] = field(default_factory=dict)
    """Per job, the newest MOST_STACKS."""
    is_job: bool = False
    """It is a job alone; whether a pipeline's step or `everstep launch` ran it, the job's history tells."""
    own: str = ""
    """The step that writes the page: it is done when somebody reads it."""
    notes: tuple[str, ...] = ()
    """What could not be read."""


@dataclass(frozen=True)
class WorkflowFacts:
    """What the workflow's controller tells a step of the run."""

    uid: str = ""
    phase: str = ""
    duration_s: float | None = None
    failures: tuple[Mapping[str, Any], ...] = ()


def read_run(
    store: Store,
    name: str,
    *,
    facts: WorkflowFacts = WorkflowFacts(),
    folder: Path | None = None,
    own: str = "",
    graph: Mapping[str, tuple[str, ...]] = {},
) -> Run:
    """Read the run `name`. `folder` is its run folder (workflow.json, logs), which a cluster does not have.

    `own`: the step that writes the page. `graph`: the tasks that each task follows, where there is no folder.
    """
    notes: list[str] = []
    workflow = {} if graph and folder is None else _workflow(folder, notes)
    steps, on_cluster = _steps(store, name, notes), folder is None and bool(facts.uid and facts.phase)
    uid = facts.uid or str(_dict_or_empty(workflow.get("metadata")).get("uid") or "") or _uid_in(steps)
    jobs: dict[str, History] = {}
    if uid:
        for name_of_job in _jobs(store, uid):
            jobs[name_of_job] = _history(store, f"jobs/{uid}-{name_of_job}", notes)
    else:
        notes.append("No job can be found in the store: the workflow's uid is unknown.")
    return Run(
        name=name,
        uid=uid,
        phase=facts.phase or str(_dict_or_empty(workflow.get("status")).get("phase") or ""),
        duration_s=facts.duration_s,
        failures=facts.failures,
        workflow=workflow,
        graph=graph,
        on_cluster=on_cluster,
        steps=steps,
        jobs=jobs,
        logs=_logs(folder, workflow),
        node_logs={job_name: _node_logs(folder, f"{uid}-{job_name}") for job_name in jobs} if folder else {},
        stacks={job_name: tuple(_stacks(store, f"jobs/{uid}-{job_name}/logs/")) for job_name in jobs},
        own=own,
        notes=tuple(notes),
    )


def read_job(store: Store, job_name: str) -> Run:
    """Read what the store has of one job; nothing else is known of its run."""
    notes: list[str] = []
    job_history = _history(store, f"jobs/{job_name}", notes)
    jobs = {job_name: job_history} if job_history.rounds or job_history.points or job_history.lives.nodes else {}
    stacks = {job_name: tuple(_stacks(store, f"jobs/{job_name}/logs/"))}
    phase = job_history.result.capitalize() or ("Running" if jobs else "")
    return Run(job_name, phase=phase, jobs=jobs, stacks=stacks, is_job=True, notes=tuple(notes))


def _uid_in(steps: Mapping[str, Mapping[str, Any]]) -> str:
    """The workflow's uid, from the name of a training step's job: `<uid>-<step>`."""
    for name, step in steps.items():
        job_name = str(_dict_or_empty(step.get("settings")).get("job") or "")
        if job_name.endswith(f"-{name}"):
            return job_name.removesuffix(f"-{name}")
    return ""


def _dict_or_empty(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _workflow(folder: Path | None, notes: list[str]) -> Mapping[str, Any]:
    if folder is None:
        notes.append("No times of single steps: there is no run folder here (workflow.json).")
        return {}
    try:
        return _dict_or_empty(json.loads((folder / "workflow.json").read_bytes()))
    except FileNotFoundError:
        notes.append("No times of single steps: the run folder has no workflow.json.")
    except (OSError, ValueError) as error:
        notes.append(f"workflow.json cannot be read: {error}")
    return {}


def _steps(store: Store, name: str, notes: list[str]) -> dict[str, Mapping[str, Any]]:
    summaries = {}
    for entry in store.list(f"runs/{name}/steps/"):
        try:
            summaries[entry.key.rsplit("/", 1)[1].removesuffix(".json")] = _dict_or_empty(
                json.loads(store.get(entry.key))
            )
        except (NoSuchKey, ValueError) as error:
            notes.append(f"{entry.key} cannot be read: {error}")
    return summaries


def _jobs(store: Store, uid: str) -> list[str]:
    """The jobs of that workflow, found by their prefix."""
    prefix = f"jobs/{uid}-"
    return sorted({entry.key.removeprefix(prefix).split("/", 1)[0] for entry in _under_jobs(store, prefix)})


def _under_jobs(store: Store, prefix: str) -> Iterator[Any]:
    return (entry for entry in store.list(prefix) if "/journal/" in entry.key or "/telemetry/" in entry.key)


def _history(store: Store, prefix: str, notes: list[str]) -> History:
    return history(_records(store, prefix, notes), _telemetry(store, prefix, notes))


def _records(store: Store, prefix: str, notes: list[str]) -> Iterator[job.Record]:
    """The journal's records that a history needs, one by one: a month of them does not fit into memory."""
    after: int | None = 0
    needed_count = unknown = 0
    while after is not None:
        try:
            for body in segments.read(store, prefix.removeprefix("jobs/"), after):
                needed_count += 1
                for number, line in enumerate(body.data.splitlines(), 1):
                    try:
                        kind = _KIND.decode(line).kind
                        if kind in _NEEDED_KINDS:
                            yield _HISTORY_RECORD.decode(line)
                            continue
                    except msgspec.MsgspecError as error:
                        kind = str(error)
                    if kind not in _KNOWN_KINDS:
                        unknown += 1
                        if unknown <= MOST_NOTES:
                            why = f"not a record this version knows ({kind})"
                            notes.append(f"{body.key}, line {number}: {why}")
            after = None
        except segments.MissingError as error:
            notes.append(str(error))
            after = error.found - 1
    if not needed_count:
        notes.append(f"No rounds and restarts: {prefix} has no journal.")
    if unknown > MOST_NOTES:
        notes.append(f"{prefix}: {unknown - MOST_NOTES} more lines are not records that this version knows")


def _telemetry(store: Store, prefix: str, notes: list[str]) -> Iterator[Mapping[str, Any]]:
    torn = 0
    for entry in store.list(f"{prefix}/telemetry/"):
        try:
            lines = store.get(entry.key).splitlines()
        except NoSuchKey:  # It has been packed since it was listed.
            continue
        for line in lines:
            try:
                yield _dict_or_empty(msgspec.json.decode(line))
            except ValueError:
                torn += 1
    if torn:
        notes.append(f"{prefix}/telemetry: {torn} unreadable lines were skipped.")


def newest_iteration(store: Store, job: str) -> int:
    """The newest iteration that a job has reported, seconds ago at most; 0: none. Raises StoreError."""
    iterations = (line.get("iteration") for line in _telemetry(store, f"jobs/{job}", []))
    return max((number for number in iterations if isinstance(number, int)), default=0)


def _stacks(store: Store, prefix: str) -> Iterator[Stacks]:
    """Files that agents wrote as `[NODE/]stacks-ROUND-NUMBER.txt`."""
    stack_files = [(entry.key, match) for entry in store.list(prefix) if (match := _STACKS.search(entry.key))]
    for key, match in stack_files[-MOST_STACKS:]:
        try:
            yield Stacks(int(match[1]), key, store.get(key)[:MOST_STACK_BYTES].decode(errors="replace"))
        except NoSuchKey:
            continue


def _node_logs(folder: Path, job: str) -> dict[str, str]:
    return {path.stem: f"{job}/{path.name}" for path in sorted((folder / "logs" / job).glob("*.log"))}


def _logs(folder: Path | None, workflow: Mapping[str, Any], lines: int = 25) -> dict[str, str]:
    """The last lines of the logs of failed pods."""
    tails: dict[str, str] = {}
    if folder is None:
        return tails
    nodes = _dict_or_empty(_dict_or_empty(workflow.get("status")).get("nodes"))
    for node in map(_dict_or_empty, nodes.values()):
        if node.get("phase") not in ("Failed", "Error"):
            continue
        for name in (node.get("id"), node.get("podName"), node.get("name"), node.get("displayName")):
            path = folder / "logs" / f"{name}.log"
            if name and "/" not in str(name) and path.is_file():
                tails[str(node.get("id"))] = _tail(path, lines)
                break
    return tails


def _tail(path: Path, lines: int, limit: int = 64 << 10) -> str:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - limit, 0))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
