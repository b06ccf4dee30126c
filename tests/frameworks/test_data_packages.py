"""Hugging Face's datasets, webdataset's shards and torchdata's StatefulDataLoader as released: 200 random kills."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.frameworks.environments import environment
from tests.harness import ROOT

SCRIPT = Path(__file__).with_name("data_packages_script.py")


@pytest.fixture(scope="session")
def python() -> Path:
    """One that has these packages."""
    return environment("data", "datasets>=3", "webdataset>=1", "torchdata>=0.11")


@pytest.mark.parametrize(
    "kind", ["datasets", "datasets_stream", "datasets_whole", "webdataset", "webdataset_whole", "stateful"]
)
def test_200_random_kills_between_3_and_4_ranks_lose_and_repeat_nothing(
    python: Path, tmp_path: Path, kind: str
) -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        [str(python), str(SCRIPT), kind], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    kills, *applied = ended.stdout.split()
    assert int(kills) == 200
    samples = [int(number) for number in applied]
    epochs = [samples[start : start + 48] for start in range(0, len(samples), 48)]
    assert len(epochs) > 10
    for epoch in epochs[:-1]:
        assert sorted(epoch) == list(range(48)), "each sample once an epoch"
    assert epochs[0] != epochs[1], "another order in each"
    assert len(set(epochs[-1])) == len(epochs[-1])
