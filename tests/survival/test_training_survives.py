"""kill -9 of a worker, a node, the step: at named points and at random moments. Each test asserts that it was fired."""

import random
from pathlib import Path

import pytest

from tests.harness import TrainStep, effective, kill, tensors, wait_until

WORKER_POINTS = [
    "train.iteration",
    "checkpoint.before_copy",
    "checkpoint.mid_copy",
    "checkpoint.after_copy",
    "checkpoint.after_commit",
]
AGENT_POINTS = ["keeper.before_put", "keeper.after_put"]
MASTER_POINTS = ["master.after_journal", "master.before_manifest", "master.after_manifest"]


def broken_rounds(training: TrainStep) -> list[dict[str, object]]:
    """The journal's broken rounds."""
    return [record for record in training.records() if record["kind"] == "RoundBroken"]


def assert_whole(training: TrainStep, undisturbed: dict[str, bytes]) -> None:
    """Ended well, with the weights of an undisturbed training, and nothing left behind."""
    assert tensors(training.checkpoint()) == undisturbed
    assert [line["iteration"] for line in effective(training.telemetry())][-1] == 60
    assert training.left() == []


def test_an_undisturbed_training_gives_the_same_weights_twice(
    training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    training.start()
    assert training.finish() == 0, training.log.read_text()
    assert broken_rounds(training) == []
    assert_whole(training, undisturbed)


@pytest.mark.parametrize("point", WORKER_POINTS)
def test_a_worker_killed_at_a_point_changes_no_weight(
    point: str, training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    training.faults = f"{point},iteration=31,rank=1=kill"
    training.start()
    assert training.finish() == 0, training.log.read_text()
    assert training.fired() == [point]
    assert len(broken_rounds(training)) == 1
    assert_whole(training, undisturbed)


@pytest.mark.parametrize("point", AGENT_POINTS)
def test_a_node_lost_at_a_point_changes_no_weight(
    point: str, training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    training.faults = f"{point},node=worker-0-0=kill"
    training.start()
    assert training.finish() == 0, training.log.read_text()
    assert training.fired() == [point]
    assert any(record["kind"] == "NodeLost" and record["node"] == "worker-0-0" for record in training.records())
    assert_whole(training, undisturbed)


@pytest.mark.parametrize("point", MASTER_POINTS)
def test_a_step_killed_at_a_point_is_taken_up_by_its_retry(
    point: str, training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    training.faults = f"{point}=kill"
    training.start()
    assert training.finish() == -9, training.log.read_text()
    assert training.fired() == [point]
    training.start()
    assert training.finish() == 0, training.log.read_text()
    assert_whole(training, undisturbed)


def test_nodes_train_on_while_the_step_is_gone(training: TrainStep, undisturbed: dict[str, bytes]) -> None:
    training.flags = {**training.flags, "iterations": "400"}
    training.start()
    training.wait_iteration(20)
    step = training.step()
    assert step is not None
    agents = {agent.pid for agent in training.agents()}
    kill(step)
    at = training.iteration()
    training.wait_iteration(at + 20)
    training.start()
    assert training.finish() == 0, training.log.read_text()
    assert broken_rounds(training) == []
    assert len(agents) == 2
    assert training.left() == []


def test_everything_killed_goes_on_from_the_store(training: TrainStep, undisturbed: dict[str, bytes]) -> None:
    training.start()
    training.wait_iteration(45)
    for process in training.processes():
        process.kill()
    wait_until(lambda: not training.processes(), "the end of everything")
    training.start()
    assert training.finish() == 0, training.log.read_text()
    formed = [record["round"] for record in training.records() if record["kind"] == "RoundFormed"]
    assert formed[-1]["restore"]["iteration"] in (20, 40)
    assert all(source["key"] for source in formed[-1]["restore"]["sources"])
    assert_whole(training, undisturbed)


@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_moments_change_no_weight(
    seed: int, training: TrainStep, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    choose = random.Random(seed)
    training.start()
    fired = 0
    for victim in choose.sample(["worker", "agent", "step"], 3):
        at = training.wait_iteration(choose.randrange(2, 15) + 15 * fired)
        if training.over() or at >= 58:
            break
        found = {"worker": training.workers, "agent": training.agents, "step": lambda: [training.step()]}[victim]()
        alive = [process for process in found if process is not None]
        if not alive:
            continue
        kill(choose.choice(alive))
        fired += 1
        if victim == "step":
            training.finish()
            training.start()
    assert training.finish() == 0, training.log.read_text()
    assert fired
    assert_whole(training, undisturbed)
