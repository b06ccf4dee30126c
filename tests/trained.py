"""Train steps in folders of their own, and a script trained twice: undisturbed, and with one worker killed."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.protocol.holdings import Tier
from everstep.runtime.report import read_job
from everstep.runtime.store import open_store
from tests.harness import ROOT, TrainStep, tensors

Start = Callable[..., TrainStep]


@pytest.fixture
def trained(tmp_path: Path) -> Iterator[Start]:
    """Starts train steps in folders of their own; whatever a failed test leaves is ended."""
    steps: list[TrainStep] = []

    def start(name: str = "run", **settings: Any) -> TrainStep:
        step = TrainStep(tmp_path / name, tmp_path / f"{name}-store", **settings)
        steps.append(step)
        step.start()
        return step

    yield start
    for step in steps:
        step.kill_all()


def own_script(name: str, **flags: str) -> dict[str, str]:
    """The flags of a train step of two nodes that run a script without a dataset: an example, or that of a path."""
    return {"script": str(ROOT / "examples" / name), "nodes": "2", "replacement-wait-s": "120", **flags}


def train_twice(
    trained: Start,
    name: str,
    script_args: str = "",
    *,
    iterations: int = 20,
    killed_at: int = 11,
    nodes: int = 2,
    python: Path | str = sys.executable,
    **settings: Any,
) -> tuple[TrainStep, TrainStep]:
    """The undisturbed training, and one whose last node loses its worker when it has staged iteration `killed_at`.

    Asserts that both ended well, that the fault fired and broke one round, and that the last checkpoints and losses
    are equal, bit for bit.
    """
    arguments = {"script-args": script_args} if script_args else {}
    flags = own_script(name, iterations=str(iterations), nodes=str(nodes), **arguments)
    settings |= {"flags": flags, "python": str(python)}
    calm = trained("calm", **settings)
    assert calm.finish() == 0, calm.last_words()
    fault = f"checkpoint.after_commit,iteration={killed_at},node=worker-{nodes - 1}-0=kill"
    killed = trained("killed", faults=fault, **settings)
    assert killed.finish() == 0, killed.last_words()
    assert killed.fired_points() == ["checkpoint.after_commit"]
    assert len(reasons(killed)) == 1, killed.last_words()
    of_calm, of_killed = tensors(calm.checkpoint()), tensors(killed.checkpoint())
    assert set(of_killed) == set(of_calm)
    assert [name for name in of_calm if of_killed[name] != of_calm[name]] == []
    losses = [
        {line["iteration"]: line["loss"] for line in training.telemetry() if "loss" in line}
        for training in (calm, killed)
    ]
    for iteration in sorted(losses[0])[-2:]:
        assert losses[1][iteration] == losses[0][iteration]
    return calm, killed


def reasons(step: TrainStep) -> list[str]:
    """Why each broken round broke."""
    return [record["reason"] for record in step.records() if record["kind"] == "RoundBroken"]


def tiers_restored(training: TrainStep) -> list[set[Tier]]:
    """By the report: from which tiers the ranks of each later round had their state."""
    (job,) = training.jobs()
    report = read_job(open_store(str(training.store), read_only=True), job)
    return [set(state.ranks) for state in report.jobs[job].states_restored]
