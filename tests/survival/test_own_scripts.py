"""Scripts of users' own, with Everstep's checkpoints and without a line of it (examples/), each killed once."""

import json
from pathlib import Path

import pytest

from everstep.runtime.protocol.holdings import Tier
from tests.harness import kill, tensors, wait_until
from tests.trained import Start, own_script, reasons, tiers_restored, train_twice


def test_a_network_in_a_loop_of_its_own_goes_on_where_it_was(trained: Start) -> None:
    _, killed = train_twice(trained, "cnn.py", "--width 2", iterations=30, killed_at=20)
    reported = {line["iteration"] for line in killed.telemetry() if "loss" in line}
    assert set(range(1, 31)) - reported <= {20}, "rank 0 may have been stopped between its save and its report"
    assert [r["iteration"] for r in killed.records() if r["kind"] == "WorkerFaulted"] == [20]
    results = json.loads((killed.outputs / "results").read_text())
    assert 0.2 < results["accuracy"] <= 1
    assert Path(results["model"]).name == "cnn.pt"
    assert Path(results["model"]).is_file()
    assert f"accuracy {results['accuracy']:.4g}" in killed.log.read_text().splitlines()[-1]


@pytest.mark.long
def test_a_dataset_of_its_own_goes_on_at_its_position(trained: Start) -> None:
    arguments = "--num-epochs 2 --pictures 80 --micro-batch 2 --num-workers 1"
    _, killed = train_twice(trained, "mnist.py", arguments, iterations=1, killed_at=13)
    consumed = {line["iteration"]: line["consumed"] for line in killed.telemetry() if "consumed" in line}
    consumed[13] = 104  # Its telemetry is sent when the next iteration begins: perhaps never.
    assert consumed == {iteration: 8 * iteration for iteration in range(1, 21)}
    assert len(killed.workers()) == 0


@pytest.mark.parametrize("fault", ["worker", "node"])
def test_a_script_without_a_line_of_everstep_begins_again_and_says_so(trained: Start, fault: str) -> None:
    step = trained(flags=own_script("regression.py", iterations="4000"))
    worker = wait_until(lambda: len(pair := step.workers()) == 2 and pair[0], "two workers")
    kill(worker if fault == "worker" else step.agents()[0])
    assert step.finish() == 0, step.last_words()
    assert len(reasons(step)) == 1
    assert (step.outputs / "checkpoint").read_text() == ""
    assert "regression.py keeps no checkpoint: after a fault it begins again" in step.log.read_text()
    logs = "".join(path.read_text() for path in step.node_logs())
    assert logs.count("weights [2.0, -1.0, 0.5]") == 2


FRAMEWORK_SCRIPTS = {
    "accelerate": ("with_accelerate.py", ""),
    "fsdp": (str(Path(__file__).with_name("fsdp_trainer.py")), ""),
    "two_models": ("two_models.py", ""),
    "recipe": ("recipe.py", ""),
}


@pytest.mark.long
@pytest.mark.parametrize("name", FRAMEWORK_SCRIPTS)
def test_a_framework_goes_on_where_it_was(trained: Start, name: str) -> None:
    train_twice(trained, *FRAMEWORK_SCRIPTS[name])


@pytest.mark.long
def test_a_megatron_model_goes_on_where_it_was_and_a_lost_nodes_part_comes_from_a_peers_memory(trained: Start) -> None:
    calm, _ = train_twice(trained, "with_megatron.py", "--tensor-parallel 2")
    flags = {**calm.flags, "min-nodes": "2"}  # One node alone cannot hold the model: it would try, were it allowed to.
    step = trained(flags=flags, faults="checkpoint.after_commit,iteration=11,node=worker-1-0=stop")
    wait_until(lambda: step.fired_points() or step.over(), "the node's worker has stopped")
    kill(step.agents()[1])
    assert step.finish() == 0, step.last_words()
    assert step.fired_points() == ["checkpoint.after_commit"]
    judged = [(record["node"], record["reason"]) for record in step.records() if record["kind"] == "FaultJudged"]
    assert judged == [("worker-1-0", "node lost")]
    assert len(reasons(step)) == 1
    assert tiers_restored(step) == [{Tier.MEMORY, Tier.PEER}]
    (_, second) = [record["round"] for record in step.records() if record["kind"] == "RoundFormed"]
    assert second["restore"]["iteration"] >= 10
    assert tensors(step.checkpoint()) == tensors(calm.checkpoint())
