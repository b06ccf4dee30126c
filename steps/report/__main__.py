"""`python -m everstep.steps.report --run NAME`: the page of a run."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from everstep.steps.entry import Result, StepError, main
from everstep.steps.report.config import Config


def run(config: Config) -> Result:
    """Read the run, write `<outputs>/report.html`, and a copy into the run's folder if there is one."""
    from everstep.runtime.report import WorkflowFacts, read_run, render
    from everstep.runtime.report.page import overview
    from everstep.runtime.store import open_store

    place = os.environ.get("EVERSTEP_RUN_DIR")
    folder = Path(place) if place else None
    now, store = time.time(), open_store(config.store)
    by_hand = folder is None and not config.uid and not config.status
    if by_hand and not any(True for _ in store.list(f"runs/{config.run}/")):
        raise StepError(f"--run {config.run}: no step of such a run is in --store {config.store}")
    report_run = read_run(
        store,
        config.run,
        facts=WorkflowFacts(
            _resolved_or_empty(config.uid),
            _resolved_or_empty(config.status),
            float(_resolved_or_empty(config.duration)) if _resolved_or_empty(config.duration) else None,
            parse_failures(_resolved_or_empty(config.failures)),
        ),
        folder=folder,
        own=config.task,
        graph=parse_graph(config.graph),
    )
    page = Path(config.outputs) / "report.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render(report_run, now), encoding="utf-8")
    if folder is not None and os.access(folder, os.W_OK):  # In a sandbox it is only an artifact.
        fresh = folder / ".report.html"
        shutil.copyfile(page, fresh)
        fresh.replace(folder / "report.html")
    line = overview(report_run, now)
    return Result(f"report.html  {line}", artifacts={"report.html": page})


def _resolved_or_empty(value: str) -> str:
    """The value; empty for a variable that the executor left unresolved."""
    return "" if value.startswith("{{") else value


def parse_failures(text: str) -> tuple[dict[str, Any], ...]:
    """Parse Argo's list, quoted twice (`"[{\\"displayName\\": ...}]"`, `"null"` when empty). Unreadable: empty."""
    value: Any = text
    for _ in range(2):
        if not isinstance(value, str):
            break
        try:
            value = json.loads(value)
        except ValueError:
            return ()
    return tuple(item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


def parse_graph(text: str) -> dict[str, tuple[str, ...]]:
    """Parse the tasks that each task follows. Unreadable: empty."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    return {name: tuple(map(str, after)) if isinstance(after, list) else () for name, after in value.items()}


if __name__ == "__main__":
    main("report", Config, run)
