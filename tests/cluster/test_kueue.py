"""Kueue itself admits a job's minimum as one, its extras one by one, and takes these back for a more important pod.

Room there is enough; what decides is the quota of a resource that only these pods ask for.
"""

from collections.abc import Iterator

import pytest

from everstep.runtime.platform.kubernetes.pods import waiting_reason
from tests.cluster import kueue
from tests.cluster.extras import MINIMUM, SPEC, classes, goes_on_with, phases, run_more_important_pod
from tests.cluster.layout import node_name
from tests.cluster.lifecycle import Cluster
from tests.cluster.room import room
from tests.cluster.trainings import PATIENCE_S, Training
from tests.golang import NoGoError
from tests.harness import wait_until

WORKLOADS = "workloads.kueue.x-k8s.io"


@pytest.fixture(scope="module")
def queue(cluster: Cluster) -> Iterator[str]:
    """Of two slots."""
    try:
        kueue.install(cluster.kubectl)
    except NoGoError as why:
        pytest.skip(str(why))
    kueue.quota(cluster.kubectl, 2)
    with classes(cluster.kubectl):
        yield kueue.QUEUE
        kueue.remove(cluster.kubectl)


@pytest.fixture(scope="module")
def job(cluster: Cluster, dataset: str, queue: str) -> Iterator[Training]:
    """Four nodes asked for, three needed, quota for two."""
    for node in (1, 2):
        room(cluster, node, 4)
    new_training = Training(cluster, dataset)
    try:
        new_training.submit_paced(
            node_name(1), SPEC, gang="kueue", queue=queue, priority_class="min", extra_priority_class="extra"
        )
        wait_until(lambda: len(new_training.nodes()) == 4, "the pods of four nodes", PATIENCE_S, pause_s=0.5)
        yield new_training
    finally:
        new_training.delete()
        for node in (1, 2):
            room(cluster, node, 0)


def test_quota_for_two_admits_none_of_three(job: Training) -> None:
    def waits() -> bool:
        return bool(job.cluster.kubectl.list(WORKLOADS)) and all(
            waiting_reason(job.nodes()[name]) == "it waits for quota of its queue" for name in MINIMUM
        )

    wait_until(waits, "a workload of the three, not admitted", PATIENCE_S, pause_s=0.5)
    assert not [name for name, pod in job.nodes().items() if pod["spec"].get("nodeName")]


def test_quota_for_three_admits_the_minimum_whole_and_the_fourth_waits(job: Training) -> None:
    kueue.quota(job.cluster.kubectl, 3)
    goes_on_with(job, 3)
    assert phases(job) == {**dict.fromkeys(MINIMUM, "Running"), "worker-3-0": "Pending"}


def test_the_fourth_joins_when_there_is_quota(job: Training) -> None:
    kueue.quota(job.cluster.kubectl, 4)
    goes_on_with(job, 4)


def test_an_extra_gives_its_quota_to_a_more_important_pod_and_the_minimum_does_not(job: Training, queue: str) -> None:
    with run_more_important_pod(job, labels={"kueue.x-k8s.io/queue-name": queue}):
        goes_on_with(job, 3)
        assert set(MINIMUM) <= set(phases(job))
    goes_on_with(job, 4)


def test_it_ends_well_and_its_quota_is_free(job: Training) -> None:
    job.stop()
    assert job.finish() == "Succeeded", job.last_words()
    assert job.in_order()
    kubectl = job.cluster.kubectl
    wait_until(lambda: kueue.slots_in_use(kubectl) == 0, "all of the quota is free", PATIENCE_S, pause_s=0.5)
