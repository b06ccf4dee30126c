"""A small dataset and a job of several real processes."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.runtime.agent.ports import free_port
from tests.datasets import write_dataset
from tests.forks import Forks

SCRIPT = Path(__file__).with_name("training_script.py")


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """About 60 samples of 16 tokens."""
    return write_dataset(tmp_path / "dataset")


@pytest.fixture
def run_script(tmp_path: Path, dataset: str, forks: Forks) -> Callable[..., list[dict[str, object]]]:
    """Run the script with `world_size` processes; what each rank wrote, in rank order."""

    def run(world_size: int, iterations: int, global_batch: int = 7, **environment: str) -> list[dict[str, object]]:
        out, port = tmp_path / "out", free_port(random.Random())
        arguments, rank_processes = [dataset, str(iterations), str(global_batch)], []
        for rank in range(world_size):
            Path(f"{out}-{rank}.err").unlink(missing_ok=True)
            places = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
            places |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            variables = (places if world_size > 1 else {}) | environment
            command = [str(SCRIPT), *arguments, f"{out}-{rank}"]
            rank_processes.append(forks.start(command, variables, Path(f"{out}-{rank}.err")))
        codes = [forks.wait(number) for number in rank_processes]
        rank_errors = [Path(f"{out}-{rank}.err").read_text() for rank in range(world_size)]
        assert not any(codes), rank_errors
        return [
            {**json.loads(Path(f"{out}-{rank}").read_text()), "stderr": rank_errors[rank]} for rank in range(world_size)
        ]

    return run
