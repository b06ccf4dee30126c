"""Swap of a test's own, on machines that let it turn some on. The next test run turns off what a killed one left."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep.runtime.system.processes import start_time

PREFIX = "everstep-swap-"
SWAPS = Path("/proc/swaps")


@contextmanager
def swap_file(folder: Path, size: int) -> Iterator[None]:
    """So many bytes of swap in that folder. Raises OSError: none can be turned on."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        path = Path(own, f"{PREFIX}{os.getpid()}-{start_time(os.getpid())}")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        for command in (["mkswap", path], ["swapon", path]):
            completed = subprocess.run(command, capture_output=True, text=True, check=False)
            if completed.returncode:
                raise OSError(completed.stderr.strip())
        try:
            yield
        finally:
            turn_off(path)


def turn_off(path: Path) -> None:
    """What is in it is read back."""
    subprocess.run(["swapoff", path], check=True)


def turn_off_left() -> None:
    """Turn off the swap files whose makers have ended."""
    for line in SWAPS.read_text().splitlines()[1:] if SWAPS.exists() else ():
        path = Path(line.split()[0])
        pid, _, began = path.name.removeprefix(PREFIX).partition("-")
        if path.name.startswith(PREFIX) and start_time(int(pid)) != int(began):
            turn_off(path)
            path.unlink()
