"""Two of four machines lose their power at once: the others' memory has the state of all, and training goes on from it.

A machine is a node here, whose processes and shared memory go together.
"""

import os
import signal
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
import pytest

from everstep.runtime.platform.debris import SHARED_MEMORY, memory_prefix
from everstep.runtime.protocol.holdings import Tier
from tests.harness import ROUNDS, TrainStep, all_tensors, wait_until

NODES, PEER_COPIES = 4, 2
PAIRS = [(0, 1), (2, 0), (3, 0), (1, 2), (1, 3), (2, 3)]
"""Ranks whose nodes are lost together. Where they are neighbours, one kept the first copy of the other's part."""
FURTHER = 5
"""Iterations between two losses, at least."""
BEHIND = 3
"""Iterations between the one that a rank computes and the newest of which every rank has all copies, at most."""


@pytest.fixture
def training(training: TrainStep) -> TrainStep:
    """FSDP2 on four nodes."""
    more = {
        "script": str(Path(__file__).with_name("sharded_survivor.py")), "nodes": str(NODES), "min-nodes": str(NODES),
        "global-batch": "8", "peer-copies": str(PEER_COPIES), "persist-interval": "1000000",
        "iterations": str(200 * ROUNDS - 120), "max-relaunches": str(20 + 2 * ROUNDS),
    }  # fmt: skip
    training.flags = {name: value for name, value in training.flags.items() if name != "script-args"} | more
    return training


def formed_rounds(training: TrainStep) -> list[dict[str, Any]]:
    return [record["round"] for record in training.records() if record["kind"] == "RoundFormed"]


def tiers(training: TrainStep, round_: int) -> list[str]:
    """Where the ranks of that round have their state from, as far as they have said so."""
    lines = [line for line in training.telemetry() if line.get("kind") == "restored" and line["round"] == round_]
    return sorted(line["tier"] for line in lines)


def lose_machines(training: TrainStep, nodes: list[str]) -> None:
    """SIGKILL all their processes at once; their memory is gone, too."""
    agents = [agent for agent in training.agents() if {*nodes} & {*agent.cmdline()}]
    assert len(agents) == len(nodes), f"not all of {nodes} were there to be killed"
    (job,) = training.jobs()
    segments = [list(SHARED_MEMORY.glob(f"{memory_prefix(job, node)}*")) for node in nodes]
    assert all(segments), f"not all of {nodes} had something in memory"
    children = [child for agent in agents for child in agent.children(recursive=True)]
    for agent in agents:
        os.kill(agent.pid, signal.SIGKILL)
    for child in children:
        with suppress(psutil.NoSuchProcess):  # It may have ended with its agent.
            child.kill()
    for path in (path for paths in segments for path in paths):
        path.unlink(missing_ok=True)
    psutil.wait_procs(agents)


@pytest.mark.long
@pytest.mark.parametrize("training", ["anew"], indirect=True)
def test_two_machines_lost_at_once_change_no_weight_and_the_state_comes_from_memory(
    training: TrainStep, tmp_path: Path
) -> None:
    calm = TrainStep(tmp_path / "calm", tmp_path / "calm-store", flags=training.flags)
    try:
        calm.start()
        assert calm.finish() == 0, calm.last_words()
    finally:
        calm.kill_all()
    training.start()
    reached, lost = [0], list[list[str]]()
    for number, pair in zip(range(ROUNDS + 1), cycle(PAIRS), strict=False):
        wait_until(lambda number=number: training.over() or len(formed_rounds(training)) > number, "all", pause_s=0.2)
        if number:
            wait_until(lambda n=number + 1: training.over() or len(tiers(training, n)) == NODES, "all", pause_s=0.2)
            assert tiers(training, number + 1) == [Tier.MEMORY] * (NODES - 2) + [Tier.PEER] * 2
        if number < ROUNDS:
            lost.append([formed_rounds(training)[-1]["members"]["worker"][rank]["node"] for rank in pair])
            reached.append(training.wait_iteration(reached[-1] + FURTHER))
            lose_machines(training, lost[-1])
    assert training.finish() == 0, training.last_words()
    first, *later = formed_rounds(training)
    assert len(later) == ROUNDS
    assert first["peer_copies"] == PEER_COPIES
    for round_, before, nodes in zip(later, reached[1:], lost, strict=True):
        assert not {*nodes} & {member["node"] for member in round_["members"]["worker"]}
        assert round_["restore"]["reason"].endswith("is whole in memory")
        assert round_["restore"]["iteration"] >= before - BEHIND
    assert all_tensors(training.checkpoint()) == all_tensors(calm.checkpoint())
    assert training.leftovers() == []
