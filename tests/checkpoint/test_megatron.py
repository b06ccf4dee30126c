"""Megatron-core itself: its sharded state, saved and loaded at other tensor and pipeline parallel sizes."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from everstep.runtime.checkpoint.errors import StateError
from everstep.runtime.protocol.worker_link import Welcome
from tests.harness import ROOT

SCRIPT = Path(__file__).with_name("megatron_script.py")


def run(tmp_path: Path, *rounds: str) -> list[dict[str, Any]]:
    """What rank 0 of each round said."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    variables = {**inherited, "OMP_NUM_THREADS": "1", "EVERSTEP_KEEP_LAST": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), str(tmp_path / "store"), str(tmp_path / "result"), *rounds]
    completed = subprocess.run(command, env=variables, timeout=500, check=False, capture_output=True, text=True)
    assert completed.returncode == 0, (completed.stdout + completed.stderr)[-5000:]
    return [torch.load(tmp_path / f"result-{number}") for number in range(len(rounds))]


@pytest.mark.long
def test_a_gpt_goes_on_at_other_tensor_and_pipeline_sizes_with_the_same_loss(tmp_path: Path) -> None:
    rounds = run(tmp_path, "2x1", "1x1", "1x2", "1x1", "2x1")
    assert [result["start"] for result in rounds] == [0, 2, 4, 6, 8]
    assert [result["operations"] for result in rounds] == [3, 10, 21, 36, 55]
    assert [result["steps"] for result in rounds] == [2, 4, 6, 8, 10]
    assert [int(result["step"]) for result in rounds] == [2, 4, 6, 8, 10]
    for before, after in pairwise(rounds):
        assert after["losses"][0] == pytest.approx(before["losses"][1], abs=1e-5)
    assert rounds[-1]["losses"][1] < rounds[0]["losses"][0] - 0.5


@pytest.mark.long
def test_a_gpt_that_goes_on_trains_as_one_that_never_stopped(tmp_path: Path) -> None:
    stopped = run(tmp_path / "a", "2x1", "2x1", "1x1")
    other = run(tmp_path / "b", "2x1", "1x2", "2x1")
    assert stopped[2]["losses"] == pytest.approx(other[2]["losses"], abs=1e-5)


@pytest.mark.long
def test_a_distributed_optimizer_goes_on_at_other_data_and_tensor_parallel_sizes_with_the_same_state(
    tmp_path: Path,
) -> None:
    rounds = run(tmp_path, "1x1x2", "1x1x2", "1x1x1", "1x1x2", "2x1x1")
    assert [result["start"] for result in rounds] == [0, 2, 4, 6, 8]
    assert [result["step"] for result in rounds] == [2, 4, 6, 8, 10]
    for before, after in pairwise(rounds):
        assert after["losses"][0] == pytest.approx(before["losses"][1], abs=1e-5)
    for before, after in pairwise(rounds[:-1]):  # With tensor parallelism rank 0 has a part of it.
        assert len(before["saved"]) == 6, "the parameters and two moments, of the dense part and of the experts'"
        assert all(torch.equal(after["loaded"][name], value) for name, value in before["saved"].items())
    assert rounds[-1]["losses"][1] < rounds[0]["losses"][0] - 0.5


@pytest.mark.parametrize(("copies", "refused"), [(0, 2), (1, 3), (2, 4)])
def test_more_replicas_than_the_job_keeps_are_refused(
    copies: int, refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("megatron.core.parallel_state")
    from everstep import megatron

    link = SimpleNamespace(welcome=Welcome("job", "store", peer_copies=copies))
    monkeypatch.setattr(megatron, "current_or_first", lambda: SimpleNamespace(context=SimpleNamespace(link=link)))
    megatron._check_replicas(refused - 1)
    with pytest.raises(StateError, match=rf"^replica_count={refused}: .* start it with --peer-copies {refused - 1}$"):
        megatron.save_checkpoint(1, torch.nn.Linear(1, 1), replica_count=refused)
