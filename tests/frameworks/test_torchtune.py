"""TorchTune's last release: its model, sharding, loss and schedule in the loop of its recipe."""

from pathlib import Path

import pytest

from tests.frameworks.environments import environment
from tests.trained import Start, train_twice

SCRIPT = Path(__file__).with_name("torchtune_script.py")


@pytest.fixture(scope="session")
def python() -> Path:
    """One that has TorchTune."""
    return environment("torchtune", "torchtune==0.6.1", "torchao<0.16")


def test_a_recipe_goes_on_bit_for_bit(trained: Start, python: Path) -> None:
    _, killed = train_twice(trained, str(SCRIPT), python=python)
    assert killed.last_words().count("done after 20 steps") == 2
