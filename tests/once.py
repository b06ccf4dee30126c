"""What several processes of one test session need is made by the first of them, while the others wait."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of this session, filled by `make` of whoever comes first; if that fails, by the next one."""
    own = factory.getbasetemp()
    session = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder, marker = session / f"once-{name}", session / f"once-{name}.done"
    with (session / f"once-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not marker.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            marker.touch()
    return folder
