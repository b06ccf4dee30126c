"""The train step on real pods, run to its end."""

import json

from tests.cluster.layout import NODES
from tests.cluster.room import SLOT, room
from tests.cluster.trainings import Training

SPEC = json.dumps({"replicaSpecs": {"worker": {"replicas": NODES, "minReplicas": NODES, "resources": {SLOT: 1}}}})
"""A pod on each machine."""


def test_pods_on_two_machines_train_to_the_end_with_a_falling_loss(training: Training) -> None:
    for node in range(1, NODES + 1):
        room(training.cluster, node, 1)
    training.submit(job_spec=SPEC, nodes="2", min_nodes="1")
    training.wait_iteration(1)
    assert training.finish() == "Succeeded", training.last_words()
    formed = [record["round"] for record in training.records() if record["kind"] == "RoundFormed"]
    assert len({member["host"] for member in formed[0]["members"]["worker"]}) == NODES
    losses = [line["loss"] for line in training.reports()]
    assert training.iteration() == len(losses) == 60
    assert sum(losses[-5:]) < sum(losses[:5])
    requested = [record["node"] for record in training.records() if record["kind"] == "NodeRequested"]
    assert sorted(requested) == ["worker-0-0", "worker-1-0"]
    assert training.nodes() == {}
