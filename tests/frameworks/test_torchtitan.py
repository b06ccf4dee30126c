"""torchtitan as released: its own Trainer, with Everstep as its checkpoint manager."""

from pathlib import Path

import pytest

from tests.frameworks.environments import environment
from tests.trained import Start, train_twice

SCRIPT = Path(__file__).with_name("torchtitan_script.py")


@pytest.fixture(scope="session")
def python() -> Path:
    """One that has torchtitan."""
    return environment("torchtitan", "torchtitan>=0.3,<0.4")


def test_its_trainer_goes_on_bit_for_bit(trained: Start, python: Path) -> None:
    _, killed = train_twice(trained, str(SCRIPT), python=python)
    assert killed.last_words().count("done after 20 steps with torchtitan.trainer") == 2
