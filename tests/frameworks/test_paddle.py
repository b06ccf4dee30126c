"""A real Paddle with collective training on CPUs: trainers come and go, and the losses are those of a calm training."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.environments import environment
from tests.harness import ROOT, TrainStep, wait_until
from tests.job_roles import evict, example, flags, log_of, rounds_broken, wait_for_line
from tests.trained import Start

ITERATIONS = 200


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
    text = "".join(path.read_text() for path in step.node_logs("worker-*"))
    matches = re.findall(r"iteration (\d+) trainers \d+ loss ([\d.]+)", text)
    return {int(iteration): float(loss) for iteration, loss in matches}


def scale(step: TrainStep, nodes: int) -> None:
    """`everstep scale`, as a user calls it."""
    command = [sys.executable, "-m", "everstep", "scale", step.folder.name, "--nodes", str(nodes)]
    subprocess.run([*command, "--runs", str(step.folder.parent)], cwd=ROOT, check=True, capture_output=True)


def test_trainers_come_and_go_and_the_losses_stay(trained: Start, python: Path, tmp_path: Path) -> None:
    calm = train(trained, python, "calm", tmp_path / "calm-state", 0.0)
    assert calm.finish() == 0, calm.last_words()
    step = train(trained, python, "run", tmp_path / "state", 0.1)
    wait_for_line(step, "worker-1-0", "iteration 15 trainers 3")
    evict(step, "worker-1-0")
    wait_for_line(step, "worker-1-1", "of 3 begins with iteration ")
    scale(step, 2)
    wait_for_line(step, "worker-0-0", "of 2 begins with iteration ")
    scale(step, 3)
    wait_until(lambda: log_of(step, "worker-0-0").count("of 3 begins") == 3 or step.over(), "the third trainer")
    assert step.finish() == 0, step.last_words()
    assert rounds_broken(step) == 3
    begins = re.findall(r"of (\d) begins with iteration (\d+)", log_of(step, "worker-0-0"))
    assert [int(trainers) for trainers, _ in begins] == [3, 3, 2, 3]
    assert min(int(iteration) for _, iteration in begins[1:]) > 1, "each round goes on from the state"
    expected = losses(calm)
    assert sorted(expected) == list(range(1, ITERATIONS + 1))
    assert losses(step) == pytest.approx(expected, rel=1e-4)
