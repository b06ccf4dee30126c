"""TRL as released: a Trainer of two models, with the callback of Hugging Face's Trainer."""

from pathlib import Path

import pytest

from tests.frameworks.environments import environment
from tests.trained import Start, train_twice

SCRIPT = Path(__file__).with_name("trl_script.py")


@pytest.fixture(scope="session")
def python() -> Path:
    """One that has TRL and datasets."""
    return environment("trl", "trl>=0.20", "datasets>=3")


def test_a_trainer_of_two_models_goes_on_bit_for_bit(trained: Start, python: Path) -> None:
    _, killed = train_twice(trained, str(SCRIPT), python=python)
    assert "done after 20 steps" in killed.last_words()
