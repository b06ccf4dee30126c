"""A job of four nodes on machines that have room for three: who waits, who joins, who gives way, who is told to go.

Room is a resource that only these pods ask for, so that the scheduler's word does not hang on this machine's memory.
"""

import json
from collections.abc import Iterator

import pytest

from everstep.cli.main import main
from tests.cluster.extras import FURTHER, MINIMUM, SPEC, classes, goes_on_with, phases, run_more_important_pod
from tests.cluster.journal import lost_nodes
from tests.cluster.layout import ADMIN, NAMESPACE, node_name
from tests.cluster.room import room
from tests.cluster.trainings import PATIENCE_S, Training
from tests.harness import wait_until


@pytest.fixture(scope="module")
def job(training: Training) -> Iterator[Training]:
    """Three of its four nodes have room."""
    cluster = training.cluster
    room(cluster, 1, 2)
    room(cluster, 2, 1)
    with classes(cluster.kubectl):
        try:
            training.submit_paced(node_name(1), SPEC, priority_class="min", extra_priority_class="extra")
            training.wait_iteration(FURTHER)
            yield training
        finally:
            for node in (1, 2):
                room(cluster, node, 0)


def resize(job: Training, nodes: int) -> None:
    """Somebody edits the ConfigMap."""
    (config_map,) = job.cluster.kubectl.list("configmaps", job.selector)
    change = {"data": {"replicas": f"worker: {nodes}\n"}}
    job.cluster.kubectl("patch", "configmap", config_map["metadata"]["name"], "--type=merge", "-p", json.dumps(change))


def test_three_of_four_train_while_the_fourth_waits_for_room(job: Training) -> None:
    goes_on_with(job, 3)
    assert phases(job) == {**dict.fromkeys(MINIMUM, "Running"), "worker-3-0": "Pending"}
    assert "no machine has room for its pod" in job.words()


def test_the_fourth_joins_when_there_is_room(job: Training) -> None:
    room(job.cluster, 2, 2)
    goes_on_with(job, 4)
    assert phases(job) == dict.fromkeys((*MINIMUM, "worker-3-0"), "Running")


def test_an_extra_gives_way_to_a_more_important_pod_and_the_minimum_does_not(job: Training) -> None:
    count_before = len(job.records())
    with run_more_important_pod(job):
        goes_on_with(job, 3)
        assert lost_nodes(job.records()[count_before:]) == {"worker-3-0"}
        assert set(MINIMUM) <= set(phases(job))
    goes_on_with(job, 4)


def test_editing_the_config_map_takes_a_node_away_and_the_command_brings_it_back(
    job: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_before = len(job.records())
    resize(job, 3)
    goes_on_with(job, 3)
    wait_until(lambda: len(phases(job)) == 3, "the fourth pod's end", PATIENCE_S, pause_s=0.5)
    (changed,) = (record for record in job.records()[count_before:] if record["kind"] == "DesiredChanged")
    assert (changed["role"], changed["nodes"]) == ("worker", 3)
    command = ["scale", job.name, "--nodes", "4", "--namespace", NAMESPACE]
    monkeypatch.setenv("KUBECONFIG", str(ADMIN))
    assert main(command) == 0
    goes_on_with(job, 4)
    resize(job, 9)
    wait_until(
        lambda: "9 is not between 3 and 4" in job.words(), "the refusal in the step's log", PATIENCE_S, pause_s=1
    )


def test_it_ends_well(job: Training) -> None:
    job.stop()
    assert job.finish() == "Succeeded", job.last_words()
    assert job.in_order()
