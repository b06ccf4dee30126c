"""An example trained twice on two nodes, undisturbed and with one worker killed: state and loss are the same."""

from pathlib import Path
from typing import Any

from tests.frameworks.conftest import Start
from tests.harness import ROOT, TrainStep, tensors


def train_twice(
    trained: Start, python: Path, name: str, script_args: str = "", iteration: int = 11, **more: Any
) -> list[TrainStep]:
    """The undisturbed training and the other. Asserts that both ended well, and that the fault fired once."""
    flags = {"script": str(ROOT / "examples" / name), "nodes": "2", "replacement-wait-s": "120", "iterations": "20"}
    flags |= {"script-args": script_args} if script_args else {}
    settings = {"flags": flags, "python": str(python), **more}
    calm = trained("calm", **settings)
    assert calm.finish() == 0, calm.last_words()
    fault = f"checkpoint.after_commit,iteration={iteration},node=worker-1-0=kill"
    killed = trained("killed", faults=fault, **settings)
    assert killed.finish() == 0, killed.last_words()
    assert killed.fired_points() == ["checkpoint.after_commit"]
    assert [record["reason"] for record in killed.records() if record["kind"] == "RoundBroken"], killed.last_words()
    return [calm, killed]


def assert_same_end(calm: TrainStep, killed: TrainStep) -> None:
    """Every tensor of the last checkpoint and the last losses are equal, bit for bit."""
    expected, got = tensors(calm.checkpoint()), tensors(killed.checkpoint())
    assert set(got) == set(expected)
    assert [name for name in expected if got[name] != expected[name]] == []
    losses = [{line["iteration"]: line["loss"] for line in one.telemetry() if "loss" in line} for one in (calm, killed)]
    for iteration in (19, 20):
        assert losses[0][iteration] == losses[1][iteration]
