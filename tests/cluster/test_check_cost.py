"""What the train step's own check of its nodes costs on a cluster: from the submission to the first iteration."""

import time
from collections.abc import Callable

import pytest

from tests.cluster.lifecycle import Cluster
from tests.cluster.trainings import Training

PAIRS = 3


@pytest.mark.parametrize("choice", ["True", "False"])
@pytest.mark.parametrize("_time", range(PAIRS))
def test_a_training_begins_with_its_check_and_without(
    cluster: Cluster, dataset: str, choice: str, _time: int, record_property: Callable[[str, object], None]
) -> None:
    training = Training(cluster, dataset)
    began = time.time()
    try:
        training.submit(network_check=choice, iterations="20")
        training.wait_iteration(1)
        record_property("check", choice)
        record_property("seconds", f"{training.reports()[0]['time'] - began:.1f}")
        assert ("Round 1: {" in training.words()) == (choice == "True")
        assert training.finish() == "Succeeded", training.last_words()
    finally:
        training.delete()
