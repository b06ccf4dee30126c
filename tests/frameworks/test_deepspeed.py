"""DeepSpeed as released, on CPUs: ZeRO 1, 2 and 3 with a killed worker, and other numbers of ranks."""

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.frameworks.conftest import Start
from tests.frameworks.environments import environment
from tests.frameworks.killed_once import assert_same_end, train_twice

SCRIPT = Path(__file__).with_name("deepspeed_script.py")
VARIABLES = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="session")
def python() -> Path:
    """One that has DeepSpeed, without compiled operators."""
    return environment("deepspeed", "deepspeed>=0.19,<1", variables={"DS_BUILD_OPS": "0", **VARIABLES})


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_an_engine_goes_on_bit_for_bit(trained: Start, python: Path, stage: str) -> None:
    assert_same_end(*train_twice(trained, python, "with_deepspeed.py", f"--stage {stage}", environment=VARIABLES))


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_an_engine_goes_on_at_another_number_of_ranks(python: Path, tmp_path: Path, stage: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    variables = {**inherited, **VARIABLES, "OMP_NUM_THREADS": "1", "EVERSTEP_KEEP_LAST": "0"}
    command = [str(python), str(SCRIPT), str(tmp_path / "store"), str(tmp_path / "result"), stage, "2", "3", "1"]
    settings = subprocess.run(command, env=variables, timeout=500, check=False, capture_output=True, text=True)
    assert settings.returncode == 0, (settings.stdout + settings.stderr)[-5000:]
    rounds = [torch.load(tmp_path / f"result-{number}") for number in range(3)]
    assert [result["start"] for result in rounds] == [0, 2, 4]
    for before, after in pairwise(rounds):
        assert after["losses"][0] == pytest.approx(before["losses"][1], abs=1e-6)
