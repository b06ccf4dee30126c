"""Lightning as released: the Trainer with a callback, and Fabric."""

import subprocess
from pathlib import Path

import pytest

from tests.frameworks.environments import environment
from tests.harness import PATIENCE_S, ROOT
from tests.trained import Start, train_twice


@pytest.fixture(scope="session")
def python() -> Path:
    """One that has Lightning."""
    return environment("lightning", "pytorch-lightning>=2.5,<3", "lightning-fabric>=2.5,<3")


@pytest.mark.parametrize("iteration", [11, 16], ids=["inside an epoch", "at its end"])
def test_a_trainer_goes_on_bit_for_bit_with_dropout(trained: Start, python: Path, iteration: int) -> None:
    calm, killed = train_twice(trained, "with_lightning.py", killed_at=iteration, python=python)
    ends = [
        line for training in (calm, killed) for line in training.last_words().splitlines() if "done after 20" in line
    ]
    assert len(ends) == 4, "two ranks of each"
    assert {line.partition("] ")[2] for line in ends} == {"done after 20 steps in epoch 2"}


def test_the_last_state_is_kept_though_a_later_round_saved_no_other(trained: Start, python: Path) -> None:
    _, killed = train_twice(trained, "with_lightning.py", "--every 8", killed_at=16, python=python)
    assert killed.checkpoint().name.endswith("-000000020")


def test_a_loop_of_fabric_goes_on_bit_for_bit(trained: Start, python: Path) -> None:
    train_twice(trained, "with_fabric.py", python=python)


def test_the_script_of_the_page_runs_as_it_stands(python: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/from-lightning.md").read_text()
    (tmp_path / "train.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    words = page.partition("```sh\n")[2].partition("```")[0].split()
    assert words[0] == "everstep"
    completed = subprocess.run(
        [str(python), "-m", *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert completed.returncode == 0, completed.stderr[-5000:]
    assert (completed.stdout + completed.stderr).count("done after 30 steps") == 2
