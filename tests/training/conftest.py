"""A small dataset and a job of several real processes."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.agent.ports import free_port
from tests.datasets import write_dataset
from tests.harness import ROOT


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """About 60 samples of 16 tokens."""
    return write_dataset(tmp_path / "dataset")


@pytest.fixture
def run_script(tmp_path: Path, dataset: str) -> Callable[..., list[dict[str, object]]]:
    """Run the script with `world_size` processes; what each rank wrote, in rank order."""

    def run(world_size: int, iterations: int, global_batch: int = 7, **environment: str) -> list[dict[str, object]]:
        out, port = tmp_path / "out", free_port(random.Random())
        variables = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
        variables |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **environment}
        command = [sys.executable, "-m", "tests.training.ranks", str(world_size), str(port), str(out)]
        command += [dataset, str(iterations), str(global_batch)]
        done = subprocess.run(command, cwd=ROOT, env=variables, timeout=120)
        told = [Path(f"{out}-{rank}.err").read_text() for rank in range(world_size)]
        assert done.returncode == 0, told
        return [{**json.loads(Path(f"{out}-{rank}").read_text()), "stderr": told[rank]} for rank in range(world_size)]

    return run
