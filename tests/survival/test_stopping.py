"""A training that is told to end, or whose script never says that it has finished: its newest state is in the store."""

import json
import re
import signal
from pathlib import Path

import psutil
import pytest

from everstep.runtime.checkpoint.worker.staging_interval import FIRST_DECISION
from tests.harness import ROOT, TrainStep, kill, tensors, wait_until

SLOW_S = 0.6
"""Of an iteration: more than passes between two heartbeats of an agent."""
README = ROOT / "README.md"
LOOP = "    for batch in batches:\n"
WITHOUT_FINISH = "    checkpointer.finish(state)\n"


def stop(training: TrainStep, signum: int) -> None:
    """As the launcher does for Ctrl-C, `stop` and `terminate`."""
    path = training.folder / "workflow.json"
    workflow = json.loads(path.read_text())
    path.write_text(json.dumps({**workflow, "spec": {**workflow["spec"], "shutdown": "Stop"}}))
    training.started[-1].send_signal(signum)


def goes_on(training: TrainStep) -> None:
    path = training.folder / "workflow.json"
    workflow = json.loads(path.read_text())
    del workflow["spec"]["shutdown"]
    path.write_text(json.dumps(workflow))


def restored_iterations(training: TrainStep) -> list[int]:
    """The iteration that each round began from."""
    formed = [record["round"] for record in training.records() if record["kind"] == "RoundFormed"]
    return [(round_.get("restore") or {}).get("iteration", 0) for round_ in formed]


@pytest.mark.parametrize(
    ("training", "signum"),
    [
        ("anew", signal.SIGINT),
        ("anew", signal.SIGTERM),
        pytest.param("survive", signal.SIGTERM, marks=pytest.mark.long),
        pytest.param("spares", signal.SIGINT, marks=pytest.mark.long),
    ],
    indirect=["training"],
)
def test_a_training_that_is_told_to_end_goes_on_where_it_was(
    signum: int, training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    """Nothing was persisted by the interval."""
    training.flags = {**training.flags, "persist-interval": "1000"}
    training.start()
    reached = training.wait_iteration(20)
    stop(training, signum)
    assert training.finish() == 143, training.last_words()
    match = re.search(r"stopped; the state of iteration (\d+) is in the store", training.log.read_text())
    assert match, training.log.read_text()
    assert int(match[1]) >= reached - 1
    assert training.leftovers() == []
    goes_on(training)
    training.start()
    assert training.finish() == 0, training.last_words()
    assert restored_iterations(training) == [0, int(match[1])]
    assert tensors(training.checkpoint()) == undisturbed


@pytest.mark.parametrize("training", ["anew"], indirect=True)
def test_nodes_train_on_when_their_step_alone_is_told_to_end(
    training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    """Whatever told it so, the run is not stopped."""
    training.start()
    training.wait_iteration(10)
    training.started[-1].terminate()
    assert training.finish() == 143, training.last_words()
    assert "stopped; its nodes train on" in training.log.read_text()
    training.start()
    assert training.finish() == 0, training.last_words()
    assert restored_iterations(training) == [0]
    assert tensors(training.checkpoint()) == undisturbed


def test_nodes_that_have_to_go_when_their_master_is_gone_leave_their_state_to_the_next(
    training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    """As when all pods of a run are evicted at once. Nothing was persisted by the interval."""
    training.flags = {**training.flags, "persist-interval": "1000"}
    training.start()
    reached = training.wait_iteration(20)
    kill(psutil.Process(training.started[-1].pid))
    for agent in training.agents():
        agent.terminate()
    wait_until(lambda: not training.processes(), "the end of all nodes")
    checkpoints = Path(training.store) / "jobs"
    assert list(checkpoints.rglob("*.report.json")), training.last_words()
    assert not list(checkpoints.rglob("manifest.json"))
    training.start()
    assert training.finish() == 0, training.last_words()
    first, second = restored_iterations(training)
    assert first == 0
    assert second >= reached
    assert tensors(training.checkpoint()) == undisturbed


@pytest.mark.parametrize(
    ("training", "saves"),
    [("anew", False), pytest.param("survive", True, marks=pytest.mark.long)],
    indirect=["training"],
    ids=["only leaves", "saves first"],
)
def test_a_script_that_leaves_with_exit_code_0_when_its_machine_ends_has_not_finished(
    saves: bool, training: TrainStep, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    """As systemd and Slurm end a machine: each of its processes gets the signal. The master is elsewhere."""
    script, save = tmp_path / "script.py", "        told and [checkpointer.finish(state), sys.exit(0)]\n"
    text = Path(training.flags["script"]).read_text()
    assert LOOP in text
    handler = "told.append(1)" if saves else "os._exit(0)"
    script.write_text(
        "import signal\ntold = []\n"
        + text.replace(LOOP, f"    signal.signal(signal.SIGTERM, lambda *_: {handler})\n{LOOP}{save}")
    )
    training.flags = {**training.flags, "script": str(script), "persist-interval": "1000"}
    training.start()
    reached = training.wait_iteration(20)
    step = training.step()
    for process in training.processes():
        if process != step:
            process.terminate()
    assert training.finish() == 0, training.last_words()
    assert restored_iterations(training)[-1] >= reached - 1
    assert tensors(training.checkpoint()) == undisturbed
    assert training.leftovers() == []


@pytest.mark.parametrize("rarely", [False, True], ids=["all staged", "few staged"])
def test_a_training_that_is_told_to_end_ends_its_iteration_first(
    rarely: bool, training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    """Its iterations are so long that the master has heard of the one that is computed."""
    interval = {"checkpoint-overhead": "0.0001%"} if rarely else {"persist-interval": "1000"}
    usual = {**training.flags}
    del usual["persist-interval"]
    script = usual.pop("script-args", "")
    training.flags = {**usual, **interval, "script-args": f"{script} --pause {SLOW_S}"}
    training.start()
    reached = training.wait_iteration(FIRST_DECISION + 4 if rarely else 3)
    (log,) = training.node_logs("worker-0-0")
    assert ("one in" in log.read_text()) == rarely
    stop(training, signal.SIGTERM)
    assert training.finish() == 143, training.last_words()
    (ended,) = (record for record in training.records() if record["kind"] == "JobEnded")
    newest = max(record["iteration"] for record in training.records() if record["kind"] == "Committed")
    assert newest >= max(ended["iteration"], reached)
    goes_on(training)
    training.flags["script-args"] = script
    training.start()
    assert training.finish() == 0, training.last_words()
    assert restored_iterations(training) == [0, newest]
    assert tensors(training.checkpoint()) == undisturbed


def test_a_script_that_never_calls_finish_loses_nothing(
    training: TrainStep, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    script = tmp_path / "script.py"
    text = Path(training.flags["script"]).read_text()
    assert WITHOUT_FINISH in text
    script.write_text(text.replace(WITHOUT_FINISH, ""))
    training.flags = {**training.flags, "script": str(script), "persist-interval": "1000"}
    training.start()
    assert training.finish() == 0, training.last_words()
    assert (training.outputs / "iterations").read_text() == training.flags["iterations"]
    assert tensors(training.checkpoint()) == undisturbed


PRELUDE = """
import everstep, torch
dataset = {dataset!r}
model = torch.nn.Sequential(torch.nn.Embedding(257, 8), torch.nn.Linear(8, 257))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
STEP = """
    loss = torch.nn.functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
    (loss * batch.weight).backward()
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    torch.save(model.state_dict(), f"{folder}/rank-{job.rank}.pt")
"""


@pytest.mark.parametrize("training", ["anew"], indirect=True)
def test_the_readmes_loop_trains_to_the_last_weight(training: TrainStep, dataset: Path, tmp_path: Path) -> None:
    import torch

    (snippet,) = re.findall(r"```python\n(job = everstep\.init\(\).*?)```", README.read_text(), re.DOTALL)
    order = "sequence_length=16, global_batch=4, iterations=7"
    for old, new in (("dataset, ...", f"dataset, {order}"), ("    ...\n", STEP)):
        assert old in snippet
        snippet = snippet.replace(old, new)
    script = tmp_path / "readme.py"
    script.write_text(f"folder = {str(tmp_path)!r}\n{PRELUDE.format(dataset=str(dataset))}{snippet}")
    training.flags = {"script": str(script), "nodes": "2", "persist-interval": "5"}
    training.start()
    assert training.finish() == 0, training.last_words()
    assert (training.outputs / "iterations").read_text() == "7"
    weights = torch.load(tmp_path / "rank-0.pt", weights_only=True)
    state = tensors(training.checkpoint())
    assert {name: tensor.numpy().tobytes() for name, tensor in weights.items()} == {
        name.removeprefix("model."): data for name, data in state.items() if name.startswith("model.")
    }
