"""A node that is told of its preemption (SIGTERM to its agent) hands its state over before it goes."""

import signal
from collections import Counter
from pathlib import Path

from tests.harness import TrainStep, wait_until

LAST = 400
SCRIPT = f"""
import threading
from pathlib import Path

import torch.distributed

import everstep

job = everstep.init()
state = {{"w": torch.zeros(3)}}
checkpointer = everstep.Checkpointer(state)
for iteration in range(checkpointer.load(state) + 1, {LAST + 1}):
    one = torch.ones(1)
    torch.distributed.all_reduce(one)
    state["w"] += one / job.world_size
    checkpointer.save(iteration, state)
    if job.rank == 0:
        with Path(DONE).open("a") as done:
            done.write(f"{{iteration}} {{int(state['w'][0])}}\\n")
    threading.Event().wait(0.1)  # Longer than a node has to go.
checkpointer.finish(state)
"""


def test_a_preempted_node_is_replaced_and_what_it_did_is_kept(tmp_path: Path, dataset: Path) -> None:
    script, done_path = tmp_path / "mine.py", tmp_path / "done"
    script.write_text(f"DONE = {str(done_path)!r}\n{SCRIPT}")
    flags = {"dataset": str(dataset), "script": str(script), "nodes": "2"}
    step = TrainStep(tmp_path / "run", tmp_path / "store", flags=flags)
    try:
        step.start()
        wait_until(
            lambda: (done_path.exists() and len(done_path.read_text().splitlines()) >= 5) or step.over(), "iterations"
        )
        step.agents()[0].send_signal(signal.SIGTERM)
        assert step.finish() == 0, step.last_words()
    finally:
        step.kill_all()
    records = step.records()
    broken = [record["reason"] for record in records if record["kind"] == "RoundBroken"]
    requested_names = [record["node"] for record in records if record["kind"] == "NodeRequested"]
    assert broken[0] == "preempted"
    assert requested_names == ["worker-0-0", "worker-1-0", "worker-0-1"], "a replacement was asked for"
    assert not [record for record in records if record["kind"] == "FaultJudged"], "it counts against nothing"
    lines = [tuple(map(int, line.split())) for line in done_path.read_text().splitlines()]
    assert all(iteration == applied for iteration, applied in lines), "each iteration was applied once"
    again = sum(times - 1 for times in Counter(lines).values())
    untold = set(range(1, LAST + 1)) - {iteration for iteration, _ in lines}
    assert again + len(untold) <= len(broken), "whoever writes them down is killed in the midst of one"
