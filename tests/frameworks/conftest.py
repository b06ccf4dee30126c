"""Fixtures of the frameworks' tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import TrainStep

Start = Callable[..., TrainStep]


@pytest.fixture
def trained(tmp_path: Path) -> Iterator[Start]:
    """Starts train steps in folders of their own; whatever a failed test leaves is ended."""
    steps: list[TrainStep] = []

    def start(name: str = "run", **settings: Any) -> TrainStep:
        step = TrainStep(tmp_path / name, tmp_path / f"{name}-store", **settings)
        steps.append(step)
        step.start()
        return step

    yield start
    for step in steps:
        step.kill_all()
