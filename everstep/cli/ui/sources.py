"""Where runs are: a folder of this machine, or a namespace of a cluster. Everything here may block."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from everstep.cli import cluster_runs, run_views
from everstep.cli.find_job import store_of
from everstep.errors import BadInput
from everstep.runtime.display.times import unix_time
from everstep.runtime.report import Run, WorkflowFacts, read_run
from everstep.runtime.store import Store, StoreError, open_store
from everstep.runtime.submission import tree
from everstep.runtime.system.rotate import read_on
from everstep.runtime.workflow.run.own_errors import workflow_message
from everstep.runtime.workflow.run.run_folder import launcher_pid

TAIL_BYTES = 64 << 10
"""Of a log that is opened, the last bytes are shown."""
LIVE = ("Running", "Pending")
INTERRUPTED = "Interrupted"
"""A run of this machine that has not ended and that no process runs: nothing in it progresses."""


class Entry(msgspec.Struct, frozen=True):
    """A run in the list."""

    place: str
    name: str
    phase: str
    """Argo's, Interrupted, or Unreadable."""
    began: float
    """Unix seconds; 0: unknown."""
    ended: float
    """0: it has not."""
    line: str
    """What it does, or why it ended."""
    title: str = ""


class OpenedRun(NamedTuple):
    """A run with the store that holds its jobs; None: its store cannot be read."""

    run: Run
    store: Store | None
    entry: Entry


class Source(Protocol):
    """One place with runs. Methods raise BadInput."""

    place: str
    """`here`, or the namespace."""
    command_flags: Sequence[str]
    """What a verb of `everstep` needs to find a run of this place."""

    def entries(self) -> dict[str, Entry]:
        """Every run by its name."""
        ...

    def retry_log(self, name: str) -> Path | None:
        """Where the process that runs it again writes; None: no process of this machine does."""
        ...

    def open(self, name: str) -> OpenedRun:
        """All that the run has left until now."""
        ...

    def logs(self, name: str) -> list[str]:
        """Names of the logs that can be read."""
        ...

    def follow(self, name: str, log: str) -> "Iterator[str]":
        """New text of a log, again and again; empty text while there is none. The first is the log's tail."""
        ...


class LocalRuns:
    """The runs of a folder."""

    place: str = "here"

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self.command_flags: Sequence[str] = ("--runs", str(runs))
        self._known: dict[str, tuple[tuple[int, int], Entry]] = {}
        """By run: the version of its file that was read, and what it said."""

    def entries(self) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for folder in run_views.find_run_folders(self._runs):
            try:
                entry = self._entry(folder)
            except (BadInput, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                entry = Entry(self.place, folder.name, "Unreadable", 0.0, 0.0, str(error))
            entries[folder.name] = entry
        self._known = {name: entries_before for name, entries_before in self._known.items() if name in entries}
        return entries

    def retry_log(self, name: str) -> Path | None:
        return run_views.run_folder(self._runs, name) / "retry.log"

    def _entry(self, folder: Path) -> Entry:
        path = next(path for file in reversed(run_views.FILES) if (path := folder / file).is_file())
        stat = path.stat()
        version = stat.st_mtime_ns, stat.st_size
        entry_before = self._known.get(folder.name)
        if entry_before is None or entry_before[0] != version:
            entry_before = version, entry_of(self.place, folder.name, run_views.read_workflow(folder))
            self._known[folder.name] = entry_before
        entry = entry_before[1]
        if entry.phase not in LIVE:
            return entry
        if not _is_run(folder):
            return msgspec.structs.replace(entry, phase=INTERRUPTED, line="no process runs it; Retry continues it")
        return msgspec.structs.replace(entry, line=_last_line(folder, entry.line))

    def open(self, name: str) -> OpenedRun:
        folder = run_views.run_folder(self._runs, name)
        entry = self._entry(folder)
        try:
            store = open_store(store_of(run_views.read_workflow(folder)), read_only=True)
        except (BadInput, StoreError) as error:
            workflow = run_views.read_workflow(folder)
            return OpenedRun(Run(name, phase=entry.phase, workflow=workflow, notes=(str(error),)), None, entry)
        try:
            run = read_run(store, name, folder=folder)
        except StoreError as error:
            raise BadInput(f"{name}: {error}") from None
        return OpenedRun(run, store, entry)

    def logs(self, name: str) -> list[str]:
        logs = self._logs(name)
        return sorted(logs, key=lambda log: (-logs[log].stat().st_mtime, log))

    def _logs(self, name: str) -> dict[str, Path]:
        """Those of steps by their names, those of nodes by STEP/NODE."""
        folder = run_views.run_folder(self._runs, name)
        logs = {path.stem: path for path in (folder / "logs").glob("*.log")}
        logs |= run_views.node_logs(folder, run_views.read_workflow(folder))
        return {log: path for log, path in logs.items() if path.is_file()}

    def follow(self, name: str, log: str) -> Iterator[str]:
        path = self._logs(name).get(log)
        if path is None:
            raise BadInput(f"{name}: no log {log}")
        size = path.stat().st_size
        at, rest = max(size - TAIL_BYTES, 0), b""
        while True:
            before, now, begin = read_on(path, at)
            at = begin + len(now)
            text = rest + before + now
            whole, end, rest = text.rpartition(b"\n")
            yield (whole + end).decode(errors="replace")


def _is_run(folder: Path) -> bool:
    try:
        return launcher_pid(folder) is not None
    except OSError:
        return False


def _last_line(folder: Path, step: str) -> str:
    """`step`, and the last line of its log."""
    path = folder / "logs" / f"{step}(0).log"
    path = path if path.is_file() else folder / "logs" / f"{step}.log"
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 2000, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return step
    return f"{step}: {lines[-1].strip()[:160]}" if lines else step


class ClusterRuns:
    """The runs of a namespace."""

    def __init__(self, namespace: str) -> None:
        self.place = namespace
        self.command_flags: Sequence[str] = ("-n", namespace)

    def entries(self) -> dict[str, Entry]:
        entries = (
            entry_of(self.place, workflow["metadata"]["name"], workflow)
            for workflow in cluster_runs.workflows(self.place)
        )
        return {entry.name: entry for entry in entries}

    def retry_log(self, name: str) -> Path | None:
        return None

    def open(self, name: str) -> OpenedRun:
        workflow = cluster_runs.get(self.place, name)
        entry = entry_of(self.place, name, workflow)
        nodes = tree.workflow_nodes(workflow)
        workflow = {**workflow, "status": {**workflow["status"], "nodes": nodes}}
        plain = Run(name, phase=entry.phase, workflow=workflow)
        try:
            store = open_store(store_of(workflow), read_only=True)
            run = read_run(store, name, facts=WorkflowFacts(uid=workflow["metadata"]["uid"], phase=entry.phase))
        except (BadInput, StoreError) as error:
            return OpenedRun(replace(plain, notes=(str(error),)), None, entry)
        notes = tuple(note for note in run.notes if "run folder" not in note)
        return OpenedRun(replace(run, workflow=workflow, notes=notes), store, entry)

    def logs(self, name: str) -> list[str]:
        rows = tree.rows(cluster_runs.get(self.place, name))
        return [row.pod for row in sorted(rows, key=lambda row: -row.started) if row.pod]

    def follow(self, name: str, log: str) -> Iterator[str]:
        if log not in self.logs(name):
            raise BadInput(f"{name}: no pod {log}")
        lines_printed = 0
        while True:
            lines = cluster_runs.log_of(self.place, name, log)
            new = lines[max(lines_printed, len(lines) - 1000) :] if len(lines) >= lines_printed else lines[-1000:]
            lines_printed = len(lines)
            yield "".join(f"{line}\n" for line in new)


def entry_of(place: str, name: str, workflow: Mapping[str, Any]) -> Entry:
    """The list's line for a workflow."""
    status, metadata = workflow.get("status") or {}, workflow.get("metadata") or {}
    phase = str(status.get("phase") or "Pending")
    began = unix_time(status.get("startedAt") or metadata.get("creationTimestamp"))
    title = str((metadata.get("annotations") or {}).get("workflows.argoproj.io/title") or "")
    return Entry(place, name, phase, began, unix_time(status.get("finishedAt")), _line(workflow, status, phase), title)


def _line(workflow: Mapping[str, Any], status: Mapping[str, Any], phase: str) -> str:
    if phase not in LIVE:
        return " ".join(workflow_message(status).split())[:200]
    nodes = tree.workflow_nodes(workflow).values()
    running = [
        node for node in nodes if node.get("phase") == "Running" and node.get("type") in ("Pod", "Retry", "Suspend")
    ]
    names = {str(node.get("displayName") or node.get("name")).partition("(")[0] for node in running}
    return ", ".join(sorted(names))
