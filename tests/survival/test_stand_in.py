"""The machine of the step and of a node does not answer: another node stands in for the step until it is back.

The machine is frozen (SIGSTOP): as with a lost one, no connection to it is refused, and nothing answers.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from everstep.runtime.master import is_stood_in_for
from everstep.runtime.store import open_store
from tests.harness import ROUNDS, TrainStep, wait_until

FIRST, FURTHER = 20, 5


@pytest.fixture
def training(training: TrainStep) -> TrainStep:
    """One whose step has pods."""
    training.module = "tests.survival.step_with_pods"
    spec = {"replicaSpecs": {"worker": {"replicas": 2, "minReplicas": 1}}, "patience": {"coolDown": 0}}
    more = {"iterations": str(200 + 450 * ROUNDS), "network-check": "False", "job-spec": json.dumps(spec)}
    training.flags = {**training.flags, **more}
    return training


@contextmanager
def frozen(step: psutil.Process, agent: psutil.Process) -> Iterator[list[psutil.Process]]:
    """The step, and a node with its workers; nothing of them runs meanwhile."""
    processes = [step, agent, *agent.children(recursive=True)]
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: all(process.status() == psutil.STATUS_STOPPED for process in processes), "that they stop")
        yield processes
    finally:
        for process in processes:
            os.kill(process.pid, signal.SIGCONT)


def rounds(training: TrainStep) -> list[int]:
    """The number of nodes of each round."""
    formed = [record["round"] for record in training.records() if record["kind"] == "RoundFormed"]
    return [sum(map(len, round_["members"].values())) for round_ in formed]


def test_a_node_stands_in_for_the_step_whose_machine_is_lost_with_a_node_on_it(training: TrainStep) -> None:
    training.start()
    training.wait_iteration(FIRST)
    store, (job,) = open_store(str(training.store), read_only=True), training.jobs()
    for number in range(ROUNDS):
        wait_until(lambda: training.over() or rounds(training)[-1] == 2, "a round of both nodes")
        step, agents = psutil.Process(training.started[-1].pid), training.agents()
        with frozen(step, agents[number % 2]) as stopped:
            before = training.iteration()
            wait_until(lambda before=before: training.iteration() >= before + FURTHER, "that it goes on")
            assert all(process.status() == psutil.STATUS_STOPPED for process in stopped)
            assert is_stood_in_for(store, job)
            assert rounds(training)[-1] == 1
        wait_until(lambda: not is_stood_in_for(store, job), "that the step takes the job back")
    assert training.finish() == 0, training.last_words()
    words = "".join(path.read_text() for path in (training.log, *training.node_logs()))
    assert words.count("this node stands in for it") == ROUNDS, words
    assert words.count("a node stands in for this step") == ROUNDS, words
    assert (training.outputs / "iterations").read_text() == training.flags["iterations"]
    assert training.leftovers() == []
