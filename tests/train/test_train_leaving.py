"""A node that is told of its preemption (SIGTERM to its agent) hands its state over before it goes."""

import signal
from collections import Counter
from pathlib import Path

from tests.harness import TrainStep, wait_until

SCRIPT = """
import threading
from pathlib import Path

import torch.distributed

import everstep

job = everstep.init()
state = {"w": torch.zeros(3)}
checkpointer = everstep.Checkpointer(state)
iteration, stop = checkpointer.load(state), False
while not stop:
    iteration += 1
    one = torch.tensor([1.0, job.rank == 0 and Path(STOP).exists()])
    torch.distributed.all_reduce(one)
    state["w"] += one[0] / job.world_size
    checkpointer.save(iteration, state)
    stop = bool(one[1])
    if job.rank == 0:
        with Path(DONE).open("a") as done:
            done.write(f"{iteration} {int(state['w'][0])}\\n")
    threading.Event().wait(0.1)
checkpointer.finish(state)
"""
AFTERWARDS = 20
"""Iterations in the next round: of the replacement too, if it has come by the time that its node must go."""


def rounds(step: TrainStep) -> int:
    """How many were formed so far."""
    return [record["kind"] for record in step.records()].count("RoundFormed")


def test_a_preempted_node_is_replaced_and_what_it_did_is_kept(tmp_path: Path, dataset: Path) -> None:
    script, done_path, stop_path = tmp_path / "mine.py", tmp_path / "done", tmp_path / "stop"
    script.write_text(f"DONE, STOP = {str(done_path)!r}, {str(stop_path)!r}\n{SCRIPT}")
    flags = {"dataset": str(dataset), "script": str(script), "nodes": "2"}
    step = TrainStep(tmp_path / "run", tmp_path / "store", flags=flags)

    def done() -> int:
        return len(done_path.read_text().splitlines()) if done_path.exists() else 0

    try:
        step.start()
        wait_until(lambda: done() >= 5 or step.over(), "iterations")
        step.agents()[0].send_signal(signal.SIGTERM)
        wait_until(lambda: rounds(step) > 1 or step.over(), "the next round", pause_s=0.2)
        before = done()
        wait_until(lambda: done() >= before + AFTERWARDS or step.over(), "iterations in the next round")
        stop_path.touch()
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
    untold = set(range(1, max(lines)[0] + 1)) - {iteration for iteration, _ in lines}
    assert again + len(untold) <= len(broken), "whoever writes them down is killed in the midst of one"
