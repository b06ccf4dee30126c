"""Launchers in a folder of their own; whatever a failed test leaves is ended."""

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.launch.launchers import Launcher, Pair, Torchrun
from tests.launch.networks import Network


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


@pytest.fixture
def network() -> Iterator[Network]:
    """Two networks, or the test is skipped."""
    made = Network()
    try:
        made.make()
    except (OSError, subprocess.CalledProcessError) as error:
        made.close()
        pytest.skip(f"no network namespaces here: {error}")
    yield made
    made.close()
