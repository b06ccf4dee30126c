"""Volcano and the coscheduling plugin themselves admit a job's minimum as one, and take its extras back for others.

Room is a resource that only these pods ask for (see `room`).
"""

from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

import pytest

from everstep.runtime.platform.kubernetes.pods import waiting_reason
from tests.cluster import coscheduling, volcano
from tests.cluster.extras import MINIMUM, SPEC, classes, goes_on_with, phases, run_more_important_pod
from tests.cluster.layout import node_name
from tests.cluster.lifecycle import Cluster
from tests.cluster.room import room
from tests.cluster.trainings import PATIENCE_S, Training
from tests.golang import NoGoError
from tests.harness import wait_until


class Scheduler(NamedTuple):
    """One that admits gangs."""

    module: ModuleType
    name: str
    """As pods name it."""
    groups: str
    """Its PodGroups, as kubectl names them."""


SCHEDULERS = {
    "volcano": Scheduler(volcano, "volcano", "podgroups.scheduling.volcano.sh"),
    "coscheduling": Scheduler(coscheduling, coscheduling.NAME, "podgroups.scheduling.x-k8s.io"),
}
"""By the word for `--gang`."""


@pytest.fixture(scope="module", params=SCHEDULERS)
def gang(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """It runs beside Kubernetes' own."""
    module = SCHEDULERS[request.param].module
    try:
        module.install(cluster.kubectl)
    except NoGoError as why:
        pytest.skip(str(why))
    with classes(cluster.kubectl):
        yield request.param
        module.remove()


@pytest.fixture(scope="module")
def job(cluster: Cluster, dataset: str, gang: str) -> Iterator[Training]:
    """Four nodes asked for, three needed, room for two."""
    room(cluster, 1, 2)
    room(cluster, 2, 0)
    new_training = Training(cluster, dataset)
    try:
        new_training.submit_paced(node_name(1), SPEC, gang=gang, priority_class="min", extra_priority_class="extra")
        wait_until(lambda: len(new_training.nodes()) == 4, "the pods of four nodes", PATIENCE_S, pause_s=0.5)
        yield new_training
    finally:
        new_training.delete()
        for node in (1, 2):
            room(cluster, node, 0)


def unplaced_pods(job: Training) -> set[str]:
    """Nodes that have no machine."""
    return {name for name, pod in job.nodes().items() if not pod["spec"].get("nodeName")}


def test_two_places_are_not_enough_for_a_gang_of_three(job: Training) -> None:
    def is_refused() -> bool:
        return all("no machine has room" in waiting_reason(job.nodes()[name]) for name in MINIMUM)

    wait_until(is_refused, "the scheduler's word on each of the three", PATIENCE_S, pause_s=0.5)
    assert unplaced_pods(job) == {*MINIMUM, "worker-3-0"}
    assert "gets a machine after the nodes of the minimum" in job.words()


def test_three_of_four_train_while_the_fourth_waits_for_room(job: Training) -> None:
    room(job.cluster, 2, 1)
    goes_on_with(job, 3)
    assert phases(job) == {**dict.fromkeys(MINIMUM, "Running"), "worker-3-0": "Pending"}


def test_the_fourth_joins_when_there_is_room(job: Training) -> None:
    room(job.cluster, 2, 2)
    goes_on_with(job, 4)


def test_an_extra_gives_way_to_a_more_important_pod_and_the_minimum_does_not(job: Training, gang: str) -> None:
    with run_more_important_pod(job, SCHEDULERS[gang].name):
        goes_on_with(job, 3)
        assert set(MINIMUM) <= set(phases(job))
    goes_on_with(job, 4)


def test_it_ends_well_and_its_groups_are_gone(job: Training, gang: str) -> None:
    job.stop()
    assert job.finish() == "Succeeded", job.last_words()
    assert job.in_order()
    assert job.cluster.kubectl.list(SCHEDULERS[gang].groups, job.selector) == []
