"""Real workers, killed by SIGKILL at each fault point; the next one ends with the weights of an undisturbed run."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent / "worker_script.py"
ITERATIONS = 6


def start(node: Any, round_: int, result: Path, **environment: str) -> int:
    variables = {**os.environ, "EVERSTEP_AGENT": node.path, "RANK": "0", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    variables |= {"EVERSTEP_ROUND": str(round_), **environment}
    command = [sys.executable, str(SCRIPT), str(ITERATIONS), str(result)]
    return subprocess.run(command, env=variables, check=False, timeout=120).returncode


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The final weights of a worker that nobody kills and that saves nothing."""
    result = tmp_path_factory.mktemp("undisturbed") / "weights"
    variables = {name: value for name, value in os.environ.items() if name != "EVERSTEP_AGENT"}
    variables["OMP_NUM_THREADS"] = "1"
    subprocess.run([sys.executable, str(SCRIPT), str(ITERATIONS), str(result)], env=variables, check=True, timeout=120)
    return torch.load(result)


POINTS = {
    "checkpoint.before_copy": 3,
    "checkpoint.mid_copy": 3,
    "checkpoint.after_copy": 3,
    "checkpoint.after_commit": 4,
}


FAST = {"checkpoint.mid_copy", "checkpoint.after_commit"}


@pytest.mark.parametrize("point", [p if p in FAST else pytest.param(p, marks=pytest.mark.long) for p in POINTS])
def test_a_worker_killed_while_it_saves_loses_at_most_that_iteration(
    point: str, node: Any, tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    faults = tmp_path / "faults"
    faults.mkdir()
    rules = {"EVERSTEP_FAULT": f"{point},iteration=4=kill", "EVERSTEP_FAULT_DIR": str(faults)}
    node.begin(1)
    assert start(node, 1, tmp_path / "weights", **rules) == -9
    assert os.listdir(faults) == [point]
    assert node.keeper.beacon(0) == (4, "save")
    node.keeper.worker_died(0)
    restore = node.newest()
    assert (restore.round, restore.iteration) == (1, POINTS[point])
    node.begin(2, restore)
    assert start(node, 2, tmp_path / "weights", **rules) == 0
    weights = torch.load(tmp_path / "weights")
    assert weights.keys() == undisturbed.keys()
    assert all(torch.equal(weights[name], undisturbed[name]) for name in weights)
    assert node.persisted[-1].iteration == ITERATIONS
