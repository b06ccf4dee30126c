"""A training whose script fails: its nodes test themselves before they start it again."""

from typing import Any

import pytest

from tests.harness import TrainStep

PATIENT = {"job-spec": "{replicaSpecs: {worker: {replicas: 2, minReplicas: 1}}, patience: {check: 60}}"}
"""Beside load a test may take longer than the usual 3 s."""


def records(training: TrainStep, kind: str) -> list[dict[str, Any]]:
    return [record for record in training.records() if record["kind"] == kind]


@pytest.mark.long
def test_after_an_error_both_nodes_test_themselves_and_train_on(training: TrainStep) -> None:
    training.arm("train.iteration,iteration=33,rank=0=raise")
    training.start(**PATIENT)
    assert training.finish() == 0, training.last_words()
    assert training.fired_points() == ["train.iteration"]
    tests = records(training, "NodeTested")
    assert sorted(test["node"] for test in tests) == ["worker-0-0", "worker-1-0"], training.last_words()
    assert all(not test.get("problem") for test in tests)


@pytest.mark.long
def test_a_node_that_computes_wrongly_is_replaced_and_the_error_charged_to_nobody(training: TrainStep) -> None:
    training.arm("train.iteration,iteration=33,rank=0=raise;check.matmul,node=worker-1-0=raise")
    training.start(**PATIENT)
    assert training.finish() == 0, training.last_words()
    assert sorted(training.fired_points()) == ["check.matmul", "train.iteration"]
    (judged,) = records(training, "FaultJudged")
    assert (judged["node"], judged["reason"]) == ("worker-1-0", "hardware")
    assert "local-1: cpu: matmul" in judged["detail"]


@pytest.mark.long
def test_an_error_that_comes_again_on_the_only_machine_fails_the_job_without_a_move(training: TrainStep) -> None:
    training.arm("train.iteration,iteration=33,rank=0=raise;train.iteration,iteration=33,rank=0=raise")
    training.start()
    assert training.finish() == 1, training.last_words()
    assert training.fired_points() == ["train.iteration", "train.iteration"]
    assert "all nodes are on one machine, so no other was tried" in training.last_words()
