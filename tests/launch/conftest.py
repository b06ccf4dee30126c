"""Launchers in a folder of their own; whatever a failed test leaves is ended."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.launch.launchers import Launcher, Pair, Torchrun


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """In a folder of its own."""
    with closing(Launcher(tmp_path)) as made:
        yield made


@pytest.fixture(scope="session")
def torchrun() -> Iterator[Torchrun]:
    """torch's launcher."""
    pytest.importorskip("torch")
    with closing(Torchrun()) as made:
        yield made


@pytest.fixture
def pair(tmp_path: Path, torchrun: Torchrun) -> Iterator[Pair]:
    """Both launchers."""
    made = Pair(tmp_path, torchrun)
    try:
        yield made
    finally:
        for launcher in made.launchers:
            launcher.close()
