"""The job that a verb's RUN[/STEP] names: found by its run's folder, read from its journal."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from everstep.errors import BadInput

if TYPE_CHECKING:
    from runtime.job.state import State
    from runtime.store import Store


class Found(NamedTuple):
    """A job that has begun."""

    job: str
    token: str
    store: "Store"
    state: "State"


def master_of(found: Found, name: str) -> str:
    """host:port of its newest master, which need not live. Raises BadInput."""
    from runtime.master.journal import JournalError, find_master
    from runtime.store import StoreError

    try:
        master = find_master(found.store, found.job)
    except (JournalError, StoreError) as error:
        raise BadInput(f"{name}: {error}") from None
    assert master is not None, "a job that has begun has had a master"
    return master.address


def find(runs: Path, name: str) -> Found:
    """The job of RUN[/STEP]. Raises BadInput where there is none, it has not begun, or its journal cannot be read."""
    from runtime.master.journal import JournalError, read_state
    from runtime.store import StoreError, open_store

    folder = runs / name.partition("/")[0]
    uri, job = _locate(folder, name)
    try:
        store = open_store(uri, read_only=True)
        state = read_state(store, job)
    except (JournalError, StoreError) as error:
        raise BadInput(f"{name}: {error}") from None
    if not state.conditions:
        raise BadInput(f"{name}: its training has not begun")
    return Found(job, (folder / "jobs" / f"{job}.token").read_text().strip(), store, state)


def _locate(folder: Path, name: str) -> tuple[str, str]:
    """(URI of the store, name of the job)."""
    step = name.partition("/")[2]
    try:
        workflow = json.loads((folder / "workflow.json").read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"{folder}: no such run; `ls {folder.parent}` shows them") from None
    jobs = sorted(path.stem for path in (folder / "jobs").glob("*.token"))
    chosen = [job for job in jobs if not step or job.endswith(f"-{step}")]
    if len(chosen) != 1:
        uid = workflow["metadata"].get("uid", "")
        steps = ", ".join(job.removeprefix(f"{uid}-") for job in jobs)
        why = f"say RUN/STEP with one of its steps that train: {steps}" if jobs else "no step of it trains, or not yet"
        raise BadInput(f"{name}: {why}")
    parameters = workflow["spec"]["arguments"]["parameters"]
    return next(entry["value"] for entry in parameters if entry["name"] == "store"), chosen[0]
