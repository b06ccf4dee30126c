"""A disk is slow for some processes of this machine: a control group that may move only some bytes a second.

After the kernel's "Block IO Controller" (v1: what a process writes itself and waits for) and "Control Group v2" (IO;
also what is written later). Nobody else's reads and writes are slower.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from everstep.runtime.chaos import groups

BYTES_PER_S = 1 << 20


def refusal(folder: Path) -> str:
    """Why the disk of that folder cannot be slow here, in one line; empty if it can."""
    device = _device(folder)
    if device.startswith("0:"):
        return f"the file system of {folder} has no disk of its own (tmpfs, overlay, network): use --store elsewhere"
    try:
        groups.remove(_make_group(device, "probe"))
    except OSError as error:
        return f"no control group can slow down the disk {device} ({error.strerror}: {error.filename})"
    return ""


@contextmanager
def slow(folder: Path, name: str, processes: Callable[[], list[psutil.Process]]) -> Iterator[Path]:
    """The disk of `folder` is slow for these processes and their children; yields their group. Raises OSError.

    Afterwards they are in the groups in which they were. Under v2 that is also the one that limits their memory: so
    long as the disk is slow, nothing does.
    """
    group, homes = _make_group(_device(folder), name), dict[int, Path]()
    try:
        groups.enter_all(group, processes, homes)
        yield group
    finally:
        groups.remove(group, homes)


def _device(folder: Path) -> str:
    """MAJOR:MINOR of the disk that the folder, or the nearest folder above it that exists, is on."""
    place = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
    number = place.stat().st_dev
    return whole_disk(f"{os.major(number)}:{os.minor(number)}")


def whole_disk(device: str, devices: Path = Path("/sys/dev/block")) -> str:
    """MAJOR:MINOR of the disk of which that device is a partition, or of the device: a partition has no limits."""
    if (devices / device / "partition").exists():
        return (devices / device / ".." / "dev").read_text().strip()
    return device


def _make_group(device: str, name: str) -> Path:
    """A group with the limit. Raises OSError."""
    if groups.DISKS_V1.is_dir():
        limits = {f"blkio.throttle.{way}_bps_device": f"{device} {BYTES_PER_S}" for way in ("read", "write")}
        root = groups.DISKS_V1
    else:
        limits = {"io.max": f"{device} rbps={BYTES_PER_S} wbps={BYTES_PER_S}"}
        if (root := groups.find_root()) is None:
            raise FileNotFoundError(errno.ENOENT, "no control groups are mounted", "/sys/fs/cgroup")
        (root / "cgroup.subtree_control").write_text("+io")
    group = groups.make_group(name, root)
    try:
        for file, value in limits.items():
            with (group / file).open("r+") as limit:
                limit.write(value)
    except OSError:
        groups.remove(group)
        raise
    return group
