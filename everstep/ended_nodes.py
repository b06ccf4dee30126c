"""Ends the nodes that a run has left on this machine, and says what is lost with their memory."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep.runtime.chaos.groups import remove_abandoned
from everstep.runtime.platform.debris import SHARED_MEMORY, memory_prefix
from everstep.runtime.platform.process import end_nodes
from everstep.runtime.platform.registry import registries_of


def end_nodes_of(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """End the nodes of the run in `folder`; returns a line for each job whose newest state only they had."""
    iterations = _newest_iterations(folder)
    end_nodes(folder)
    remove_abandoned()
    uri = _store_of(manifest)
    jobs = [path.stem for path in sorted((folder / "jobs").glob("*.token"))]
    return [line for job in jobs if (line := _line(job, iterations.get(job, 0), uri))]


def _newest_iterations(folder: Path) -> dict[str, int]:
    """Job -> the iteration that its live nodes have reached, as their memory tells."""
    iterations_by_job: dict[str, int] = {}
    for entry in (entry for registry in registries_of(folder) for entry in registry.all()):
        iterations = _iterations(memory_prefix(entry.job, entry.name))
        iterations_by_job[entry.job] = max([iterations_by_job.get(entry.job, 0), *iterations])
    return iterations_by_job


def _iterations(prefix: str) -> Iterator[int]:
    from everstep.runtime.checkpoint.errors import SegmentError
    from everstep.runtime.checkpoint.shard.segment import SegmentFile

    for path in SHARED_MEMORY.glob(f"{prefix}*"):
        try:
            yield SegmentFile.open(path).read_beacon().iteration
        except SegmentError:
            continue  # Another kind of file.


def _store_of(manifest: Mapping[str, Any]) -> str:
    """URI of the run's store; empty if it has none."""
    entries = (manifest["spec"].get("arguments") or {}).get("parameters") or ()
    return next((str(entry.get("value") or "") for entry in entries if entry["name"] == "store"), "")


def _line(job: str, in_memory: int, uri: str) -> str:
    """Empty if the store has all that the job has reached. `job`: the run's uid (five groups) and its step."""
    from everstep.runtime.journal.journal import JournalError, read_state
    from everstep.runtime.report.read import newest_iteration
    from everstep.runtime.store import StoreError, open_store

    iteration_reached, stored_iteration = in_memory, 0
    try:
        if uri:
            store = open_store(uri, read_only=True)
            checkpoints = read_state(store, job).checkpoints
            stored_iteration = max(
                (key[1] for key, checkpoint in checkpoints.items() if checkpoint.manifest), default=0
            )
            iteration_reached = max(iteration_reached, newest_iteration(store, job))
    except (JournalError, StoreError):
        pass  # The store itself is lost.
    if iteration_reached <= stored_iteration:
        return ""
    lost_text = (
        f"the store has iteration {stored_iteration}, later ones are lost"
        if stored_iteration
        else "nothing is in the store, all is lost"
    )
    return f"{job.split('-', 5)[-1]}: ended after iteration {iteration_reached}; {lost_text}"
