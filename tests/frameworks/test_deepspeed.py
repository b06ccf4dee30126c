"""DeepSpeed as released, on CPUs: ZeRO 1, 2 and 3 with a killed worker, and other numbers of ranks."""

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.frameworks.environments import environment
from tests.harness import ROOT
from tests.trained import Start, train_twice

SCRIPT, TRAINER = (Path(__file__).with_name(f"deepspeed_{name}.py") for name in ("script", "trainer"))
VARIABLES = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="session")
def python() -> Path:
    """One that has DeepSpeed, without compiled operators."""
    return environment("deepspeed", "deepspeed>=0.19,<1", variables={"DS_BUILD_OPS": "0", **VARIABLES})


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_an_engine_goes_on_bit_for_bit(trained: Start, python: Path, stage: str) -> None:
    train_twice(trained, "with_deepspeed.py", f"--stage {stage}", python=python, environment=VARIABLES)


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_a_trainer_of_hugging_face_with_deepspeed_goes_on_bit_for_bit(trained: Start, python: Path, stage: str) -> None:
    _, killed = train_twice(trained, str(TRAINER), f"--stage {stage}", python=python, environment=VARIABLES)
    assert killed.last_words().count("done after 20 steps with DeepSpeedEngine") == 2


def test_a_trainer_goes_on_at_another_number_of_ranks_within_an_epoch(python: Path, tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    store = {"EVERSTEP_STORE": str(tmp_path / "store"), "EVERSTEP_JOB": "job"}
    variables = {**inherited, **VARIABLES, **store, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    for ranks, steps, new_steps in (2, 3, 3), (1, 5, 2):  # Of 8 and 16 in an epoch.
        launcher = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [*launcher, str(TRAINER), "--iterations", str(steps)]
        ended = subprocess.run(command, env=variables, timeout=500, check=False, capture_output=True, text=True)
        assert ended.returncode == 0, (ended.stdout + ended.stderr)[-5000:]
        assert ended.stdout.count(f"done after {steps} steps with DeepSpeedEngine") == ranks
        assert ended.stdout.count("'loss'") == new_steps


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


HOSTILE = """
import sys
from types import SimpleNamespace
import torch.distributed as dist
from everstep.deepspeed import load_engine
from everstep.runtime.checkpoint.errors import RestoreError

class Engine:
    checkpoint_engine = None
    def load_checkpoint(self, *args, **options):
        print("loaded")
        return "there", {}

dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
tag, file, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
state = {"saved": {"tag": tag, "files": {file: {"weight": 1}}}}
shards = [SimpleNamespace(saved={"state": state}, layout=SimpleNamespace(tensors={}))] * ranks
try:
    load_engine(Engine(), shards, "saved")
except RestoreError as error:
    print(error)
"""


@pytest.mark.parametrize("ranks", ["1", "2"], ids=["same", "universal"])
@pytest.mark.parametrize(
    ("tag", "file"),
    [
        ("../evil", "a.pt"), ("..", "a.pt"), ("", "a.pt"), ("step", "../../evil.pt"), ("step", "{folder}/evil.pt"),
        ("step", ".."), ("step", "a/../../evil.pt"),
    ],
)  # fmt: skip
def test_names_in_a_checkpoint_lead_out_of_no_folder(
    python: Path, tmp_path: Path, tag: str, file: str, ranks: str
) -> None:
    (temporary := tmp_path / "outer" / "temporary").mkdir(parents=True)
    variables = {**os.environ, **VARIABLES, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    command = [str(python), "-c", HOSTILE, tag, file.format(folder=tmp_path), ranks]
    ended = subprocess.run(command, env=variables, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert "not the name of a file" in ended.stdout
    assert "loaded" not in ended.stdout
    assert not list(tmp_path.rglob("*evil*"))
