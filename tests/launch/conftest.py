"""Launchers in a folder of their own; whatever a failed test leaves is ended."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.launchers import Launcher, Pair, Torchrun


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """In a folder of its own."""
    made = Launcher(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def torchrun() -> Iterator[Torchrun]:
    """torch's launcher."""
    pytest.importorskip("torch")
    made = Torchrun()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def pair(tmp_path: Path, torchrun: Torchrun) -> Iterator[Pair]:
    """Both launchers."""
    made = Pair(tmp_path, torchrun)
    try:
        yield made
    finally:
        for launcher in made.launchers:
            launcher.close()
