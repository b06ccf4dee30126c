"""`everstep workflow wait|watch|delete`: until runs have ended, and after."""

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from everstep.cli import run_views
from everstep.errors import BadInput
from everstep.runtime.display.times import unix_time

POLL_S = 0.3


def wait(runs: Path, names: Sequence[str]) -> int:
    """Wait until all have ended; print how as `argo wait` does. Returns 0 if all succeeded, else 1."""
    waiting = [run_views.run_folder(runs, name) for name in names]
    codes = [0]
    while waiting:
        for folder in list(waiting):
            if (status := _live_status(folder)).get("finishedAt"):
                print(f"{folder.name} {status['phase']} at {status['finishedAt']}", flush=True)
                codes.append(int(status["phase"] != "Succeeded"))
                waiting.remove(folder)
        if waiting:
            time.sleep(POLL_S)
    return max(codes)


def watch(runs: Path, name: str) -> int:
    """Show the run's tree until it has ended; returns 0 if it succeeded, else 1."""
    return show(_workflows(run_views.run_folder(runs, name)))


def show(workflows: Iterator[dict[str, Any]]) -> int:
    """Show the tree of each state of a run, on a terminal in place of the one before; elsewhere when a step has
    changed. Returns 0 if the last state is a success, else 1."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, workflow = Console(highlight=False, soft_wrap=True), dict[str, Any]()
    if not console.is_terminal:
        for workflow in _skip_repeats(workflows):
            print(run_views.run_view(workflow, time.time()), flush=True)
    else:
        with Live(console=console, auto_refresh=False) as live:
            for workflow in workflows:
                live.update(Text(run_views.run_view(workflow, time.time())), refresh=True)
    return int(workflow["status"]["phase"] != "Succeeded")


def _workflows(folder: Path) -> Iterator[dict[str, Any]]:
    """The run again and again, until it has ended."""
    while True:
        finished_at = _live_status(folder).get("finishedAt")
        yield run_views.read_workflow(folder)
        if finished_at:
            return
        time.sleep(POLL_S)


def _skip_repeats(workflows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Those in which a step differs from the one before, and the last."""
    last: object = None
    for workflow in workflows:
        nodes = workflow["status"]["nodes"]
        phases = {name: (node["phase"], node.get("message")) for name, node in nodes.items()}
        if phases != last or workflow["status"].get("finishedAt"):
            last = phases
            yield workflow


def _live_status(folder: Path) -> dict[str, Any]:
    """The status of a run that has ended or is being run. Raises BadInput for another one: it would not end."""
    from everstep.runtime.workflow.run.run_folder import launcher_pid

    holder = launcher_pid(folder)  # Before the status: the launcher writes its end, then leaves.
    status = run_views.read_workflow(folder)["status"]
    if not status.get("finishedAt") and holder is None:
        raise BadInput(f"{folder.name}: no process runs it; `everstep workflow resume {folder.name}` resumes it")
    return status


def delete(runs: Path, names: Sequence[str], is_over: bool, older_s: float, dry_run: bool) -> int:
    """Delete the folders of runs that have ended: those named, and with `is_over` or `older_s` all that fit."""
    from everstep.runtime.workflow import ManifestError
    from everstep.runtime.workflow.run.run_folder import lock

    folders = [run_views.run_folder(runs, name) for name in names]
    if is_over or older_s:
        folders += [folder for folder in run_views.run_folders(runs) if _has_ended(folder, older_s)]
    for folder in dict.fromkeys(folders):
        if not _has_ended(folder, 0.0):
            raise BadInput(f"{folder.name}: has not ended; `everstep workflow terminate {folder.name}` ends it")
        try:
            with lock(folder):
                if not dry_run:
                    shutil.rmtree(folder)
        except ManifestError as error:
            raise BadInput(str(error)) from None
        print(f"Workflow '{folder.name}' deleted{' (dry-run)' if dry_run else ''}")
    return 0


def _has_ended(folder: Path, older_s: float) -> bool:
    """Has it ended, that long ago at least?"""
    finished_at = run_views.read_head(folder)["status"].get("finishedAt")
    return bool(finished_at) and time.time() - unix_time(finished_at) >= older_s
