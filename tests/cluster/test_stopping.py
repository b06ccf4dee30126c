"""A run that is over for good takes its pods, their processes and their memory with it, whatever becomes of its step.

Each is done to the step as a real Argo 4.1 does it: at `stop` and `terminate` its process gets SIGTERM when the
Workflow says so already, a deleted Workflow takes its pods along, a deadline leaves the step no time to do anything.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import faults
from tests.cluster.costs import cost
from tests.cluster.faults import MASTERS_HOST
from tests.cluster.journal import taken_over
from tests.cluster.lifecycle import Cluster
from tests.cluster.trainings import PATIENCE_S, Training
from tests.harness import kill, wait_until

DEAD_MAN = "EVERSTEP_DEAD_MAN_S"
Record = Callable[[str, object], None]


@pytest.fixture
def job(cluster: Cluster, dataset: str, request: pytest.FixtureRequest) -> Iterator[Training]:
    """Two nodes that train; its parameter: variables of theirs."""
    new_training = Training(cluster, dataset, environment=getattr(request, "param", {}))
    try:
        new_training.submit_paced(MASTERS_HOST, faults.spec())
        new_training.wait_iteration(10)
        yield new_training
    finally:
        new_training.delete()


def are_gone(job: Training, uids: set[str]) -> bool:
    """Nothing of these pods is left on this machine: no process, no memory mounted for them."""
    mounts = Path("/proc/mounts").read_text()
    return not (any(f"/pods/{uid}/" in mounts for uid in uids) or faults.marked_processes(f"EVERSTEP_JOB={job.job}"))


def wait_gone(job: Training, uids: set[str], tell: Record) -> None:
    """Until it is so; how long it took is told."""
    since = time.monotonic()
    wait_until(lambda: are_gone(job, uids), "the end of all nodes", PATIENCE_S, pause_s=0.5)
    tell("gone", f"{time.monotonic() - since:.1f}")


def pods(job: Training) -> set[str]:
    """UIDs of the pods that train."""
    uids = {pod["metadata"]["uid"] for pod in job.nodes().values()}
    assert len(uids) == 2
    assert not are_gone(job, uids)
    return uids


def results(job: Training) -> list[str]:
    """How the job ended, as its journal says."""
    return [record["result"] for record in job.records() if record["kind"] == "JobEnded"]


def shut_down(job: Training, how: str | None) -> None:
    """Write it into the Workflow as `argo stop` and `terminate` do; None: `argo retry` removes it."""
    patch = json.dumps({"spec": {"shutdown": how}})
    job.cluster.kubectl("patch", "workflow", job.name, "--type=merge", "-p", patch)


@pytest.mark.parametrize("how", ["Stop", "Terminate"])
def test_a_run_that_is_told_to_stop_takes_its_nodes_along(job: Training, how: str, record_property: Record) -> None:
    uids = pods(job)
    shut_down(job, how)
    faults.step_of(job).terminate()
    wait_gone(job, uids, record_property)
    assert job.finish() == "Failed"
    assert results(job) == ["stopped"]


@pytest.mark.parametrize("how", ["Stop", "Terminate"])
def test_a_run_that_is_tried_again_after_it_was_stopped_does_no_iteration_again(job: Training, how: str) -> None:
    pods(job)
    shut_down(job, how)
    faults.step_of(job).terminate()
    assert job.finish() == "Failed"
    count_before = len(job.records())
    (end_record,) = (record for record in job.records() if record["kind"] == "JobEnded")
    trained = max(job.iteration(), end_record["iteration"])
    shut_down(job, None)
    job.start(MASTERS_HOST)
    faults.goes_on(job)
    (first, *_) = (record["round"] for record in job.records()[count_before:] if record["kind"] == "RoundFormed")
    assert first["restore"]["iteration"] >= trained
    assert cost(job.reports(), end_record["time"]).lost == 0
    assert job.in_order()


def test_a_step_that_is_told_to_end_and_will_be_tried_again_leaves_its_nodes(job: Training) -> None:
    uids, count_before = pods(job), len(job.records())
    faults.step_of(job).terminate()
    assert job.finish() == "Failed"
    job.start(MASTERS_HOST)
    faults.goes_on(job)
    assert taken_over(job.records()[count_before:])
    assert pods(job) == uids
    assert job.in_order()


def test_a_run_that_is_deleted_takes_its_nodes_along(job: Training, record_property: Record) -> None:
    uids = pods(job)
    job.delete()
    wait_gone(job, uids, record_property)
    wait_until(lambda: not job.cluster.kubectl.list("pods", job.selector), "the end of all pods", PATIENCE_S, 0.5)
    assert job.not_stored() == 0


@pytest.mark.parametrize("job", [{DEAD_MAN: "20"}], indirect=True, ids=["soon"])
def test_nodes_that_no_master_comes_for_end_by_themselves(job: Training, record_property: Record) -> None:
    uids = pods(job)
    kill(faults.step_of(job))
    wait_gone(job, uids, record_property)
    assert job.nodes() == {}
    assert results(job) == []
