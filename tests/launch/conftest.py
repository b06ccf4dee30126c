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
    with closing(Launcher(tmp_path)) as new_launcher:
        yield new_launcher


@pytest.fixture(scope="session")
def torchrun() -> Iterator[Torchrun]:
    """torch's launcher."""
    pytest.importorskip("torch")
    with closing(Torchrun()) as new_torchrun:
        yield new_torchrun


@pytest.fixture
def pair(tmp_path: Path, torchrun: Torchrun) -> Iterator[Pair]:
    """Both launchers."""
    new_pair = Pair(tmp_path, torchrun)
    try:
        yield new_pair
    finally:
        for launcher in new_pair.launchers:
            launcher.close()


@pytest.fixture
def network() -> Iterator[Network]:
    """Two networks, or the test is skipped."""
    new_network = Network()
    try:
        new_network.make()
    except (OSError, subprocess.CalledProcessError) as error:
        new_network.close()
        pytest.skip(f"no network namespaces here: {error}")
    yield new_network
    new_network.close()
