"""A small dataset and a job of several real processes."""

import json
import os
import random
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everstep.runtime.agent.ports import free_port
from tests.datasets import write_dataset
from tests.harness import ROOT

DEADLINE_S = 120


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """About 60 samples of 16 tokens."""
    return write_dataset(tmp_path / "dataset")


@pytest.fixture(scope="session")
def ranks() -> Iterator["subprocess.Popen[str]"]:
    """The process of which all ranks are forks."""
    pipe, variables = subprocess.PIPE, {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.ranks"]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **variables}, stdin=pipe, stdout=pipe, text=True
    ) as server:
        yield server
        server.kill()


@pytest.fixture
def run_script(tmp_path: Path, dataset: str, ranks: "subprocess.Popen[str]") -> Callable[..., list[dict[str, object]]]:
    """Run the script with `world_size` processes; what each rank wrote, in rank order."""

    def run(world_size: int, iterations: int, global_batch: int = 7, **environment: str) -> list[dict[str, object]]:
        out, port = tmp_path / "out", free_port(random.Random())
        variables = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
        variables |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **environment}
        run = {
            "world_size": world_size, "port": port, "out": str(out), "environment": variables,
            "arguments": [dataset, str(iterations), str(global_batch)],
        }  # fmt: skip
        assert ranks.stdin is not None
        assert ranks.stdout is not None
        print(json.dumps(run), file=ranks.stdin, flush=True)
        ready, _, _ = select.select([ranks.stdout], [], [], DEADLINE_S)
        assert ready, f"the ranks did not end within {DEADLINE_S} s"
        failed = ranks.stdout.readline()
        told = [Path(f"{out}-{rank}.err").read_text() for rank in range(world_size)]
        assert failed == "0\n", told
        return [{**json.loads(Path(f"{out}-{rank}").read_text()), "stderr": told[rank]} for rank in range(world_size)]

    return run
