"""Real workers, killed by SIGKILL at each fault point; the next one ends with the weights of an undisturbed run."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.forks import Forks

SCRIPT = Path(__file__).parent / "worker_script.py"
ITERATIONS = 6


def start(forks: Forks, result: Path, way: str = "before", **environment: str) -> int:
    return forks.run([str(SCRIPT), str(ITERATIONS), str(result), way], environment, result.with_name("log"))


def under(node: Any, round_: int) -> dict[str, str]:
    """Variables of the node's worker."""
    return {"EVERSTEP_AGENT": node.path, "RANK": "0", "LOCAL_RANK": "0", "EVERSTEP_ROUND": str(round_)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> dict[str, torch.Tensor]:
    """The final weights of a worker that nobody kills and that saves nothing."""
    result = tmp_path_factory.mktemp("undisturbed") / "weights"
    assert start(forks, result) == 0
    return torch.load(result)


POINTS = {
    "checkpoint.before_copy": 3,
    "checkpoint.mid_copy": 3,
    "checkpoint.after_copy": 3,
    "checkpoint.after_commit": 4,
}


POINTS_BESIDE = {**POINTS, "script.between_copies": 3, "checkpoint.before_commit": 3}
"""Where the copies run beside training, which may have gone on meanwhile."""
FAST = {("before", "checkpoint.mid_copy"), ("before", "checkpoint.after_commit"), ("beside", "script.between_copies"),
        ("beside", "checkpoint.after_copy")}  # fmt: skip
CASES = [*(("before", point) for point in POINTS), *(("beside", point) for point in POINTS_BESIDE)]


@pytest.mark.parametrize(
    ("way", "point"), [case if case in FAST else pytest.param(*case, marks=pytest.mark.long) for case in CASES]
)
def test_a_worker_killed_while_it_saves_loses_at_most_that_iteration(
    way: str, point: str, node: Any, tmp_path: Path, undisturbed: dict[str, torch.Tensor], forks: Forks
) -> None:
    faults = tmp_path / "faults"
    faults.mkdir()
    rules = {"EVERSTEP_FAULT": f"{point},iteration=4=kill", "EVERSTEP_FAULT_DIR": str(faults)}
    node.begin(1)
    assert start(forks, tmp_path / "weights", way, **under(node, 1), **rules) == -9
    assert os.listdir(faults) == [point]
    assert node.keeper.beacon(0) in ([(4, "save")] if way == "before" else [(4, "save"), (5, "save")])
    node.keeper.worker_died(0)
    restore = node.newest()
    assert (restore.round, restore.iteration) == (1, POINTS_BESIDE[point])
    node.begin(2, restore)
    assert start(forks, tmp_path / "weights", way, **under(node, 2), **rules) == 0
    weights = torch.load(tmp_path / "weights")
    assert weights.keys() == undisturbed.keys()
    assert all(torch.equal(weights[name], undisturbed[name]) for name in weights)
    assert node.persisted[-1].iteration == ITERATIONS
