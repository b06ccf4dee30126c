"""Scripts of users' own, with Everstep's checkpoints and without a line of it (examples/), each killed once."""

import json
from pathlib import Path

import pytest

from tests.harness import ROOT, TrainStep, kill, tensors, wait_until


def example(training: TrainStep, name: str, **flags: str) -> TrainStep:
    """That example in a step of two nodes, without a dataset."""
    training.flags = {"script": str(ROOT / "examples" / name), "nodes": "2", "replacement-wait-s": "120", **flags}
    return training


def reasons(training: TrainStep) -> list[str]:
    return [record["reason"] for record in training.records() if record["kind"] == "RoundBroken"]


def run_both(training: TrainStep, tmp_path: Path, name: str, iteration: int, **flags: str) -> list[TrainStep]:
    """The example undisturbed, and with the worker of a node killed once after that iteration's commit: both end well,
    with the same tensors."""
    calm = example(TrainStep(tmp_path / "calm", tmp_path / "store"), name, **flags)
    killed = example(training, name, **flags)
    killed.arm(f"checkpoint.after_commit,iteration={iteration},node=worker-1-0=kill")
    for one in (calm, killed):
        one.start()
        assert one.finish() == 0, one.last_words()
    assert killed.fired_points()
    assert len(reasons(killed)) == 1
    assert tensors(killed.checkpoint()) == tensors(calm.checkpoint())
    return [calm, killed]


def test_a_network_in_a_loop_of_its_own_goes_on_where_it_was(training: TrainStep, tmp_path: Path) -> None:
    flags = {"iterations": "30", "script-args": "--width 2"}
    _, killed = run_both(training, tmp_path, "cnn.py", 20, **flags)
    reported = {line["iteration"] for line in killed.telemetry() if "loss" in line}
    assert set(range(1, 31)) - reported <= {20}, "rank 0 may have been stopped between its save and its report"
    assert [r["iteration"] for r in killed.records() if r["kind"] == "WorkerFaulted"] == [20]
    results = json.loads((killed.outputs / "results").read_text())
    assert 0.2 < results["accuracy"] <= 1
    assert Path(results["model"]).name == "cnn.pt"
    assert Path(results["model"]).is_file()
    assert f"accuracy {results['accuracy']:.4g}" in killed.log.read_text().splitlines()[-1]


@pytest.mark.long
def test_a_dataset_of_its_own_goes_on_at_its_position(training: TrainStep, tmp_path: Path) -> None:
    flags = {"iterations": "1", "script-args": "--num-epochs 2 --pictures 80 --micro-batch 2 --num-workers 1"}
    _, killed = run_both(training, tmp_path, "mnist.py", 13, **flags)
    consumed = {line["iteration"]: line["consumed"] for line in killed.telemetry() if "consumed" in line}
    consumed[13] = 104  # Its telemetry is sent when the next iteration begins: perhaps never.
    assert consumed == {iteration: 8 * iteration for iteration in range(1, 21)}
    assert len(killed.workers()) == 0


@pytest.mark.parametrize("fault", ["worker", "node"])
def test_a_script_without_a_line_of_everstep_begins_again_and_says_so(training: TrainStep, fault: str) -> None:
    step = example(training, "regression.py", iterations="4000")
    step.start()
    worker = wait_until(lambda: len(pair := step.workers()) == 2 and pair[0], "two workers")
    kill(worker if fault == "worker" else step.agents()[0])
    assert step.finish() == 0, step.last_words()
    assert len(reasons(step)) == 1
    assert (step.outputs / "checkpoint").read_text() == ""
    assert "regression.py keeps no checkpoint: after a fault it begins again" in step.log.read_text()
    logs = "".join(path.read_text() for path in (step.folder / "logs").glob("*.log"))
    assert logs.count("weights [2.0, -1.0, 0.5]") == 2


FRAMEWORK_SCRIPTS = {
    "accelerate": ("with_accelerate.py", ""),
    "fsdp": (str(Path(__file__).with_name("fsdp_trainer.py")), ""),
    "megatron": ("with_megatron.py", "--tensor-parallel 2"),
    "two_models": ("two_models.py", ""),
    "recipe": ("recipe.py", ""),
}


@pytest.mark.long
@pytest.mark.parametrize("name", FRAMEWORK_SCRIPTS)
def test_a_framework_goes_on_where_it_was(training: TrainStep, tmp_path: Path, name: str) -> None:
    script, script_args = FRAMEWORK_SCRIPTS[name]
    flags = {"iterations": "20", "script-args": script_args}
    calm, killed = run_both(training, tmp_path, script, 11, **flags)
    losses = [{line["iteration"]: line["loss"] for line in one.telemetry() if "loss" in line} for one in (calm, killed)]
    assert losses[0][20] == losses[1][20]
