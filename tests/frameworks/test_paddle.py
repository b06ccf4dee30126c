"""A real Paddle with collective training on CPUs: trainers come and go, and the losses are those of a calm training."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.conftest import Start
from tests.frameworks.environments import environment
from tests.harness import TrainStep
from tests.job_roles import evict, example, flags, log_of, nodes_requested, rounds_broken, wait_for_line

ITERATIONS = 60


@pytest.fixture(scope="session")
def python() -> Path:
    """One that has Paddle."""
    return environment("paddle", "paddlepaddle>=3,<4", "setuptools")


def train(trained: Start, python: Path, name: str, folder: Path, seconds: float, **more: Any) -> TrainStep:
    spec = {"frameworkType": "paddle", "replicaSpecs": {"worker": {"replicas": 3, "minReplicas": 2}}}
    words = [str(python), example("paddle_collective.py"), "--folder", str(folder)]
    words += ["--iterations", str(ITERATIONS), "--iteration-seconds", str(seconds)]
    return trained(name, flags=flags(spec, {"worker": words}, **more))


def losses(step: TrainStep) -> dict[int, float]:
    """The newest loss of each iteration, as any trainer has written it."""
    text = "".join(path.read_text() for path in sorted((step.folder / "logs").glob("worker-*.log")))
    found = re.findall(r"iteration (\d+) trainers \d+ loss ([\d.]+)", text)
    return {int(iteration): float(loss) for iteration, loss in found}


def test_a_killed_trainer_is_replaced_or_done_without_and_the_losses_stay(
    trained: Start, python: Path, tmp_path: Path
) -> None:
    calm = train(trained, python, "calm", tmp_path / "calm-state", 0.0)
    assert calm.finish() == 0, calm.last_words()
    killed = train(trained, python, "killed", tmp_path / "killed-state", 0.1)
    wait_for_line(killed, "worker-1-0", "iteration 15 trainers 3")
    evict(killed, "worker-1-0")
    wait_for_line(killed, "worker-1-1", "of 3 begins with iteration ")
    assert killed.finish() == 0, killed.last_words()
    assert rounds_broken(killed) == 1
    fewer = train(trained, python, "fewer", tmp_path / "fewer-state", 0.1, **{"max-relaunches": "0"})
    wait_for_line(fewer, "worker-2-0", "iteration 15 trainers 3")
    evict(fewer, "worker-2-0")
    assert fewer.finish() == 0, fewer.last_words()
    assert "iteration 60 trainers 2" in log_of(fewer, "worker-0-0")
    assert "worker-2-1" not in nodes_requested(fewer)
    wanted = losses(calm)
    assert sorted(wanted) == list(range(1, ITERATIONS + 1))
    for step in (killed, fewer):
        assert losses(step) == pytest.approx(wanted, rel=1e-4)
