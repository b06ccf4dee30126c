"""TRL as released: a Trainer of two models, or of one and its adapter, with the callback of Hugging Face's Trainer."""

from pathlib import Path

import pytest

from tests.frameworks.environments import environment
from tests.trained import Start, train_twice

SCRIPT = Path(__file__).with_name("trl_script.py")


@pytest.fixture(scope="session")
def python() -> Path:
    """One that has TRL, datasets and PEFT."""
    return environment("trl", "trl>=0.20", "datasets>=3", "peft>=0.17")


@pytest.mark.parametrize("flags", ["", "--lora"], ids=["two models", "an adapter of PEFT"])
def test_a_trainer_goes_on_bit_for_bit(trained: Start, python: Path, flags: str) -> None:
    _, killed = train_twice(trained, str(SCRIPT), flags, python=python)
    assert "done after 20 steps" in killed.last_words()
