"""Finds the job that a verb's RUN[/STEP] names, in the run's folder or on a cluster, and reads its journal."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from everstep.cli.run_views import read_workflow
from everstep.errors import BadInput

IN_STORE = re.compile(r"(?P<store>.+)/(?P<kind>runs|jobs)/(?P<name>[^/]+)/?")
"""How a verb is told what a store has of a run or of a job."""

if TYPE_CHECKING:
    from everstep.runtime.job.state import State
    from everstep.runtime.store import Store
    from everstep.runtime.submission.custom_resource import CustomResource


class FoundJob(NamedTuple):
    """A job that has started, with its state."""

    job: str
    token: str
    store: "Store"
    state: "State"


class ClusterJob(NamedTuple):
    """A job on a cluster."""

    job: str
    route: "CustomResource"
    workflow: Mapping[str, Any]
    sizes: Mapping[str, Any]
    """The ConfigMap that holds the job's size."""


def find_on_cluster(namespace: str, name: str) -> ClusterJob:
    """Find the job of RUN[/STEP] in that namespace of the kube context. Raises BadInput, ApiError."""
    from everstep.runtime.platform.kubernetes.pods import JOB, NAME
    from everstep.runtime.submission.custom_resource import CustomResource

    run, _, step = name.partition("/")
    route = CustomResource(os.environ, namespace)
    workflow = route.get(run)
    uid = workflow["metadata"]["uid"]
    jobs = {config_map["metadata"]["annotations"].get(NAME, ""): config_map for config_map in route.config_maps(JOB)}
    mine = {job.removeprefix(f"{uid}-"): job for job in jobs if job.startswith(f"{uid}-")}
    if (not step and len(mine) != 1) or (step and step not in mine):
        raise BadInput(f"{name}: {_step_hint(mine)}")
    job = mine[step or next(iter(mine))]
    return ClusterJob(job, route, workflow, jobs[job])


def store_of(workflow: Mapping[str, Any]) -> str:
    """URI of the run's store. Raises BadInput: its workflow names none, as one that gives it to a step itself."""
    for entry in (workflow["spec"].get("arguments") or {}).get("parameters") or ():
        if entry["name"] == "store" and entry.get("value"):
            return entry["value"]
    why = "its workflow has no parameter `store`; `everstep status` and `report` take STORE/jobs/JOB, too"
    raise BadInput(f"{workflow['metadata'].get('name', 'the run')}: {why}")


def _step_hint(steps: Iterable[str]) -> str:
    """A hint at what to write instead."""
    names = ", ".join(sorted(steps))
    return (
        f"give RUN/STEP with one of its training steps: {names}"
        if names
        else "it has no training step, or none has started yet"
    )


def read_started(uri: str, job: str, name: str, unknown: str = "") -> tuple["Store", "State"]:
    """The job's store, and the state that its journal gives.

    Raises BadInput; it says `unknown` where the store has nothing of that job.
    """
    from everstep.runtime.journal.journal import JournalError, read_state
    from everstep.runtime.store import StoreError, open_store

    try:
        store = open_store(uri, read_only=True)
        state = read_state(store, job)
    except (JournalError, StoreError) as error:
        raise BadInput(f"{name}: {error}") from None
    if not state.conditions:
        is_unknown = unknown and next(iter(store.list(f"jobs/{job}/")), None) is None
        raise BadInput(f"{name}: {unknown if is_unknown else 'its training has not started'}")
    return store, state


def newest_master(job: FoundJob, name: str) -> str:
    """host:port of the newest master, which may be dead. Raises BadInput."""
    from everstep.runtime.journal.journal import JournalError, find_master
    from everstep.runtime.store import StoreError

    try:
        master = find_master(job.store, job.job)
    except (JournalError, StoreError) as error:
        raise BadInput(f"{name}: {error}") from None
    assert master is not None, "a job that has begun has had a master"
    return master.address


def find(runs: Path, name: str) -> FoundJob:
    """Find the job of RUN[/STEP]. Raises BadInput: there is none, it has not started, or its journal cannot be read."""
    folder = runs / name.partition("/")[0]
    uri, job = locate(folder, name)
    store, state = read_started(uri, job, name)
    return FoundJob(job, (folder / "jobs" / f"{job}.token").read_text().strip(), store, state)


def run_end(folder: Path) -> str:
    """When the run of that folder ended, as its workflow says; "": it goes on, or has been killed."""
    return (read_workflow(folder).get("status") or {}).get("finishedAt") or ""


def locate(folder: Path, name: str) -> tuple[str, str]:
    """(URI of the store, name of the job)."""
    step = name.partition("/")[2]
    try:
        workflow = read_workflow(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"{folder}: no such run; `ls {folder.parent}` shows them") from None
    jobs = sorted(path.stem for path in (folder / "jobs").glob("*.token"))
    uid = workflow["metadata"].get("uid", "")
    matching_jobs = [job for job in jobs if not step or job == f"{uid}-{step}"]
    if not matching_jobs:  # It may have a name of its own; `pre-train` is another step than `train`.
        own = [job for job in jobs if not job.startswith(f"{uid}-")]
        matching_jobs = [job for job in own if job.endswith(f"-{step}")]
    if len(matching_jobs) != 1:
        raise BadInput(f"{name}: {_step_hint(job.removeprefix(f'{uid}-') for job in jobs)}")
    return store_of(workflow), matching_jobs[0]
