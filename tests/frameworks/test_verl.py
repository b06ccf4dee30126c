"""verl as released: its GRPO, its sharding and a reference model in a loop of one process a rank."""

from pathlib import Path

import pytest

from tests.frameworks.environments import environment
from tests.trained import Start, train_twice

SCRIPT = Path(__file__).with_name("verl_script.py")


@pytest.fixture(scope="session")
def python() -> Path:
    """One that has verl."""
    return environment("verl", "verl>=0.9,<0.10")


def test_an_actor_with_its_reference_goes_on_bit_for_bit(trained: Start, python: Path) -> None:
    _, killed = train_twice(trained, str(SCRIPT), python=python)
    assert killed.last_words().count("done after 20 steps") == 2
