"""Limits of a node's resources: a control group of its own, v2 or v1, if this process may create one.

After the kernel's "Control Group v2" (memory.max, cpu.max), "Memory Resource Controller" and "CFS Bandwidth Control"
(v1). A node's group is below its creator's, so the creator's limits apply to it, too. Under v2 a group that contains
processes cannot delegate controllers: then the node's group is beside it, provided that the creator is not limited.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from everstep.runtime.job.spec import Resources

MOUNT = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
_PERIOD_US = 100_000
_OOM_SCORE_ADJ = 500


class _Limit(NamedTuple):
    """What to write to which file; the first file is the one that matters."""

    v1: Mapping[str, str]
    v2: Mapping[str, str]


def limit(
    job: str, node: str, resources: Resources, pid: int, own: Path = OWN_GROUPS, mount: Path = MOUNT
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Limit a process and all that it will start: (the groups it is in now, the resources that nobody limits)."""
    name = f"everstep-{hashlib.sha256(job.encode()).hexdigest()[:12]}-{node}"
    groups: dict[Path, None] = {}
    unlimited = [resource for resource, amount in resources.others.items() if amount]
    for controller, limits in _limits(resources):
        for group in _make_groups(controller, limits, name, own, mount):
            if _enter_group(group, pid):
                groups[group] = None
                break
            remove_groups((group,))
        else:
            unlimited.append(controller)
    return tuple(groups), tuple(unlimited)


def prefer_to_kill(pid: int) -> None:
    """If the machine runs out of memory, the kernel kills this process, and those it starts, before others."""
    with suppress(OSError):  # The process may have ended.
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(_OOM_SCORE_ADJ))


def remove_groups(groups: Iterable[Path]) -> None:
    """Remove groups whose processes have all ended."""
    for group in groups:
        with suppress(OSError):  # It is gone, or still contains a zombie: an empty group costs nothing.
            group.rmdir()


def _limits(resources: Resources) -> Iterator[tuple[str, _Limit]]:
    if resources.memory_bytes:
        memory = str(resources.memory_bytes)
        v1 = {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
        yield "memory", _Limit(v1, {"memory.max": memory, "memory.swap.max": "0"})
    if resources.cpu:
        quota = str(max(1000, int(resources.cpu * _PERIOD_US)))
        v1 = {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": str(_PERIOD_US)}
        yield "cpu", _Limit(v1, {"cpu.max": f"{quota} {_PERIOD_US}"})


def _make_groups(controller: str, limits: _Limit, name: str, own: Path, mount: Path) -> Iterator[Path]:
    """Groups of that name, created and limited, in the order in which to try them."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in lines:
        if controller in controllers.split(","):
            group = _visible_group(mount / controller, path)
            if _make_group(group / name, limits.v1):
                yield group / name
        elif not controllers:
            for root in (mount, mount / "unified"):
                for parent in _parents_v2(_visible_group(root, path), root, next(iter(limits.v2))):
                    with suppress(OSError):
                        (parent / "cgroup.subtree_control").write_text(f"+{controller}")
                    if _make_group(parent / name, limits.v2):
                        yield parent / name


def _visible_group(root: Path, path: str) -> Path:
    """The group's folder. A container often sees its own group as the root, while /proc gives the path outside."""
    inside = root / path.lstrip("/")
    return inside if inside.is_dir() else root


def _parents_v2(group: Path, root: Path, file: str) -> Iterator[Path]:
    yield group
    with suppress(OSError):
        if group != root and (group / file).read_text().split()[0] == "max":
            yield group.parent


def _make_group(group: Path, values: Mapping[str, str]) -> bool:
    """Create the group and write its limits; False if the first limit cannot be set."""
    existed = group.is_dir()
    try:
        group.mkdir(exist_ok=True)
    except OSError:
        return False
    for number, (file, value) in enumerate(values.items()):
        try:
            with (group / file).open("r+") as limits:  # Never created: without the file there is no such controller.
                limits.write(value)
        except OSError:
            if number == 0:
                if not existed:
                    remove_groups((group,))
                return False
    return True


def _enter_group(group: Path, pid: int) -> bool:
    try:
        with (group / "cgroup.procs").open("r+") as processes:
            processes.write(str(pid))
    except OSError:
        return False
    return True
