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

SCRIPT = Path(__file__).parent / "training_script.py"


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """About 60 samples of 16 tokens."""
    return write_dataset(tmp_path / "dataset")


@pytest.fixture
def run_script(tmp_path: Path, dataset: str) -> Callable[..., list[dict[str, object]]]:
    """Run the script with `world_size` processes; what each rank wrote, in rank order."""

    def run(world_size: int, iterations: int, global_batch: int = 7, **environment: str) -> list[dict[str, object]]:
        port, processes = free_port(random.Random()), []
        for rank in range(world_size):
            variables = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
            variables |= {"OMP_NUM_THREADS": "1", **environment}
            if world_size > 1:
                places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
                variables |= {name: str(value) for name, value in places.items()} | {"MASTER_ADDR": "127.0.0.1"}
            out = tmp_path / f"out-{rank}"
            command = [sys.executable, str(SCRIPT), dataset, str(iterations), str(global_batch), str(out)]
            processes.append((out, subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)))
        written = []
        for out, process in processes:
            told = process.communicate(timeout=120)[1]
            assert process.returncode == 0, told
            written.append({**json.loads(out.read_text()), "stderr": told})
        return written

    return run
