"""A node that is slow iteration after iteration, in real processes: replaced where the policy says so."""

from pathlib import Path

import pytest

from everstep.runtime.job.records import Decision
from tests.harness import TrainStep

SCRIPT = """
import os, time
import torch
import everstep

job = everstep.init()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
state = {"model": model, "optimizer": optimizer}
checkpointer = everstep.Checkpointer(state)
begin = checkpointer.load(state)
slow = job.round == 1 and job.rank == 1
if slow:
    open(os.path.join(os.path.dirname(__file__), "planted"), "w").close()
for iteration in range(begin + 1, begin + 41 if job.round > 1 else 100_000):
    model(torch.randn(4, 8)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.15 if slow else 0.05)
    checkpointer.save(iteration, state)
    everstep.report(loss=0.0)
checkpointer.finish(state)
"""


@pytest.mark.long
@pytest.mark.parametrize("training", ["anew"], indirect=True)
def test_a_slow_node_is_replaced_and_the_training_goes_on_where_it_was(training: TrainStep, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    training.flags = {
        "script": str(script), "nodes": "3", "min-nodes": "2", "iterations": "1", "straggler-policy": "replace",
        "replacement-wait-s": "120",
    }  # fmt: skip
    training.start()
    assert training.finish() == 0, training.last_words()
    assert (tmp_path / "planted").exists()
    records = training.records()
    slow, broken, judged = (
        next(record for record in records if record["kind"] == kind)
        for kind in ("SlowSeen", "RoundBroken", "FaultJudged")
    )
    assert (slow["node"], slow["ranks"], slow["part"]) == ("worker-1-0", [1], "compute")
    assert (broken["reason"], broken["node"]) == ("straggler", "worker-1-0"), training.last_words()
    assert (judged["decision"], judged["node"], judged["avoid"]) == (Decision.EXCLUDE, "worker-1-0", True)
    (replacement,) = (
        record for record in records if record["kind"] == "NodeRequested" and record["node"] == "worker-1-1"
    )
    assert replacement["host"] != "local-1"
    first, *_, last = (record["round"] for record in records if record["kind"] == "RoundFormed")
    assert {member["node"] for member in first["members"]["worker"]} == {"worker-0-0", "worker-1-0", "worker-2-0"}
    assert {member["node"] for member in last["members"]["worker"]} == {"worker-0-0", "worker-1-1", "worker-2-0"}
    trained = {line["iteration"] for line in training.telemetry() if "loss" in line}
    # The script reports after its save: a fault takes the report of the newest saved iteration along.
    newest = broken["iteration"]
    assert set(range(1, newest + 40)) - trained <= {newest - 1, newest, newest + 1}
