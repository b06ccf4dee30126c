"""What two machines are good for: a node that its machine fails moves, and one power cut leaves a copy of all state."""

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from everstep.runtime.job.reasons import Decision, Reason
from tests.cluster import faults
from tests.cluster.costs import cost
from tests.cluster.faults import MASTERS_HOST
from tests.cluster.journal import lost_nodes
from tests.cluster.layout import NODES, node_name
from tests.cluster.lifecycle import Cluster
from tests.cluster.trainings import PATIENCE_S, Training
from tests.harness import wait_until

FOUR = json.dumps({
    "replicaSpecs": {"worker": {"replicas": 4, "minReplicas": 2, "resources": {"memory": "1Gi"}}},
    "patience": {"coolDown": 1},
})  # fmt: skip
OTHER = node_name(2)
BOTH = ",".join(node_name(number + 1) for number in range(NODES))


@pytest.fixture
def job(cluster: Cluster, dataset: str) -> Iterator[Training]:
    """A training to submit; whatever is left of it is deleted."""
    new_training = Training(cluster, dataset)
    try:
        yield new_training
    finally:
        new_training.delete()


def machines(job: Training) -> Counter[str]:
    """How many running nodes of the training each machine has."""
    pods = job.nodes().values()
    return Counter(pod["spec"]["nodeName"] for pod in pods if pod["status"].get("phase") == "Running")


def errors(job: Training) -> list[tuple[str, str]]:
    """(Node, decision) of the script's errors."""
    records = [
        record for record in job.records() if record["kind"] == "FaultJudged" and record["reason"] == Reason.USER_ERROR
    ]
    return [(record["node"], record["decision"]) for record in records]


def test_an_error_that_its_machine_repeats_moves_a_node_to_the_other_one(job: Training) -> None:
    job.submit_paced(MASTERS_HOST, faults.spec(), more=f"--fails-on {OTHER}")
    wait_until(lambda: job.over() or len(errors(job)) >= 2, "two errors", PATIENCE_S, pause_s=0.5)
    faults.goes_on(job)
    failing = errors(job)[0][0]
    assert errors(job) == [(failing, Decision.RESTART), (failing, Decision.RELAUNCH_ELSEWHERE)]
    (instead,) = (
        record["node"]
        for record in job.records()
        if record["kind"] == "NodeRequested" and record["replaces"] == failing
    )
    wait_until(lambda: faults.steady(job), "a round of both nodes", PATIENCE_S, pause_s=0.5)
    assert job.nodes()[instead]["spec"]["nodeName"] == MASTERS_HOST
    assert job.in_order()
    job.stop()
    assert job.finish() == "Succeeded", job.last_words()


def test_an_error_that_both_machines_repeat_is_the_scripts_own_and_ends_the_job(job: Training) -> None:
    job.submit_paced(MASTERS_HOST, faults.spec(), more=f"--fails-on {BOTH}")
    assert job.finish() == "Failed"
    (end_record,) = (record for record in job.records() if record["kind"] == "JobEnded")
    assert (end_record["result"], end_record["exit_code"]) == ("failed", 1)
    assert "so it is the script's own" in end_record["reason"]
    assert "ArithmeticError" in job.words()


def test_nodes_are_on_machines_apart_and_a_power_cut_leaves_a_copy_of_each_part_of_the_state(job: Training) -> None:
    job.submit_paced(MASTERS_HOST, FOUR, more="--sharded", persist_interval="1000000")
    wait_until(lambda: job.world() == 4 or job.over(), "a round of four nodes", PATIENCE_S, pause_s=0.5)
    job.wait_iteration(20)
    assert machines(job) == {MASTERS_HOST: 2, OTHER: 2}
    count_before = len(job.records())
    assert not [record for record in job.records() if record["kind"] == "Committed"], "no copy but those in memory"
    moment = faults.node_lost(job)
    faults.goes_on(job)
    since = job.records()[count_before:]
    assert len(lost_nodes(since)) == 2
    assert cost(job.reports(), moment).lost == 0
    assert job.in_order()
