"""Ranks without an agent begin from one checkpoint, or all fail, whichever of them the store fails."""

import json
import os
import subprocess
import sys

import pytest
import torch

from everstep.runtime.checkpoint.state.flatten import flatten
from everstep.runtime.checkpoint.worker.agreement import from_rank_0, largest
from everstep.runtime.checkpoint.worker.standalone import Alone
from everstep.runtime.store import DirectoryStore
from tests.checkpoint.agreeing_ranks import CASES
from tests.harness import PATIENCE_S, ROOT

WORLD_SIZE = 3


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, int | str]]:
    """What each rank restored in each case."""
    folder = tmp_path_factory.mktemp("agreement")
    for iteration in (1, 2, 3):
        alone = Alone(DirectoryStore(folder / "store"), "j")
        alone.save(iteration, flatten({"weights": torch.full((4,), float(iteration))}), persist=True)
        alone.flush(iteration)
    command = [sys.executable, "-m", "tests.checkpoint.agreeing_ranks"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(folder / "store"), str(folder / "told"), str(WORLD_SIZE)],
        cwd=ROOT, env=environment, timeout=PATIENCE_S, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"told-{rank}").read_text()) for rank in range(WORLD_SIZE)]


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_restore_the_same_or_fail(told: list[dict[str, int | str]], name: str) -> None:
    wanted = CASES[name].wanted
    others = "UnreachableError" if wanted == "StoreError" else wanted
    assert [rank[name] for rank in told] == [wanted, *[others] * (WORLD_SIZE - 1)]


def test_a_process_by_itself_agrees_with_itself() -> None:
    assert from_rank_0(lambda: (4, 2)) == (4, 2)
    assert largest(0.5) == 0.5
