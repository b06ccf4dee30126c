"""Which of this machine's devices each of its nodes sees: nodes that are processes of one machine share them out.

CUDA's and ROCm's libraries number the devices that CUDA_VISIBLE_DEVICES lists from 0, so each node's workers find
theirs by LOCAL_RANK. The numbers in that list count the devices that a process can open: a container's only one is 0,
also where its file is /dev/nvidia3. CUDA counts the fastest one first, or by the bus; numbers of ours are by the bus.
No driver is asked in this process: that would make a CUDA context in a process that forks. What a device's CPUs are is
in Linux's and the NVIDIA driver's files (Linux, "sysfs-bus-pci"; NVIDIA's README, "The /proc File System Interface").
Never run on a device.

What differs between vendors is in the names in capitals below. Of Intel's devices nothing is shared out: their
ZE_AFFINITY_MASK also names parts of devices, and their files in /dev/dri are those of every display.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path

from msgspec.structs import replace

from everstep.runtime.job.spec import JobSpec, RoleSpec

VARIABLE = "CUDA_VISIBLE_DEVICES"
VARIABLES = ("HIP_VISIBLE_DEVICES", VARIABLE)
"""Each lists the devices that a process sees; the first that is set counts. ROCm takes CUDA's too (ROCm, "GPU isolation
techniques"; torch, `_parse_visible_devices`)."""
_ORDER = "CUDA_DEVICE_ORDER"
"""PCI_BUS_ID: CUDA's numbers count as NVML's and `near_cpus` do, also where devices are of several kinds (CUDA C++
Programming Guide, "CUDA Environment Variables")."""
_DEVICE_FILES = re.compile(r"nvidia\d+")
"""One for each device: NVIDIA's driver."""
_DRIVER_FILES = ("dxg", "kfd")
"""Of drivers that have no file for each device: of Windows, in WSL 2; of AMD."""
_NAME = re.compile(r"\d+|(GPU|MIG)-.+")
"""Of a device in a list."""
_COUNT = """
import sys, torch
kind = sys.argv[1]
if kind == "auto":
    kind = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
kind = "cuda" if kind == "gpu" else kind
print(len(__import__("os").sched_getaffinity(0)) if kind == "cpu" else getattr(torch, kind).device_count())
"""


class TooFewDevices(ValueError):  # noqa: N818 (a name that reads well in `except`)
    """Not even one node of a role has a device for each of its workers."""


def device_count(kind: str) -> int:
    """How many devices of that kind torch sees (cpu, gpu, xpu, auto), asked in a process of its own: some seconds."""
    if kind == "cpu":
        return len(os.sched_getaffinity(0))
    count = subprocess.run([sys.executable, "-c", _COUNT, kind], capture_output=True, text=True, check=False)
    return int(count.stdout) if count.returncode == 0 else 0


@cache
def _count_gpus() -> int:
    return device_count("gpu")


def machine_devices(
    environment: Mapping[str, str], folder: Path = Path("/dev"), count: Callable[[], int] = _count_gpus
) -> tuple[str, ...]:
    """The devices that this process may use, as CUDA_VISIBLE_DEVICES names them; those of the machine if it is not set.

    Empty: there are none. `count` is asked only where no list and no file says it, and a driver is there.
    """
    if (listed := _listed(environment)) is not None:
        return listed
    number = sum(_DEVICE_FILES.fullmatch(path.name) is not None for path in folder.glob("nvidia*"))
    if not number and any((folder / name).exists() for name in _DRIVER_FILES):
        number = count()
    return tuple(map(str, range(number)))


def may_have_devices(environment: Mapping[str, str], folder: Path = Path("/dev")) -> bool:
    """Whether `machine_devices` may name any: known at once."""
    return bool(machine_devices(environment, folder, lambda: 1))


def _listed(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The devices that are listed; None: there is no list. CUDA ignores what follows an invalid name, such as -1, or
    Slurm's NoDevFiles."""
    text = next((environment[name] for name in VARIABLES if name in environment), None)
    if text is None:
        return None
    return tuple(takewhile(_NAME.fullmatch, (name.strip() for name in text.split(","))))


def node_devices(devices: Sequence[str], first: int, count: int) -> str:
    """A node's list if its workers are these of all the machine's: one device for each. Empty without devices.

    A later node of the same place gets the same ones.
    """
    return ",".join(devices[first : first + count])


def shown_by(listed: str, environment: Mapping[str, str]) -> Mapping[str, str]:
    """The variables by which a process of this environment sees the devices of the list alone. The order is that of the
    bus unless the environment names one, or has a list, which counts in CUDA's own."""
    variables = {name: listed for name in VARIABLES if name == VARIABLE or name in environment}
    return variables if {*VARIABLES, _ORDER} & environment.keys() else {**variables, _ORDER: "PCI_BUS_ID"}


def near_cpus(
    names: Sequence[str],
    driver: Path = Path("/proc/driver/nvidia/gpus"),
    bus: Path = Path("/sys/bus/pci/devices"),
    folder: Path = Path("/dev"),
) -> frozenset[int]:
    """The CPUs in the NUMA nodes of these devices, as CUDA_VISIBLE_DEVICES names them. Empty: not known."""
    cpus, number = set[int](), 0
    for path in sorted(driver.glob("*/information")):
        lines = (line.partition(":") for line in path.read_text().splitlines())
        facts = {key.strip(): value.strip() for key, _, value in lines}
        if not (folder / f"nvidia{facts.get('Device Minor')}").exists():
            continue
        if {str(number), facts.get("GPU UUID")} & set(names):
            cpus |= _cpus_of(bus / path.parent.name / "local_cpulist")
        number += 1
    return frozenset(cpus)


def _cpus_of(path: Path) -> set[int]:
    """The numbers of a list like 0-15,32-47; empty if there is none."""
    listed = path.read_text().strip() if path.exists() else ""
    ranges = (part.partition("-") for part in listed.split(",") if part)
    return {cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)}


def first_worker(roles: Mapping[str, RoleSpec], role: str, index: int) -> int:
    """The first of a node's workers among all, when every role has its most nodes and its spares."""
    before = [roles[name] for name in list(roles)[: list(roles).index(role)]]
    return sum((earlier.most + earlier.spare_nodes) * earlier.slots for earlier in before) + index * roles[role].slots


def fit_to_devices(spec: JobSpec, devices: Sequence[str]) -> tuple[JobSpec, list[str]]:
    """The spec with no more nodes than have a device for each worker, and a line for each role that has fewer nodes, or
    fewer spares.

    Raises TooFewDevices.
    """
    if not devices:
        return spec, []
    roles, lines, devices_left = {}, [], len(devices)
    for name, role in spec.roles.items():
        most = min(role.most, devices_left // role.slots)
        most -= most % role.node_unit
        if not most:
            raise TooFewDevices(
                f"{name}: {role.slots} workers a node, {devices_left} of this machine's {len(devices)} devices "
                "are left; "
                f"use fewer workers, or hide the devices ({VARIABLE}=)"
            )
        if most < role.nodes:
            lines.append(f"{name}: {most} of {role.nodes} nodes, as this machine has {len(devices)} devices")
        spares = min(role.spare_nodes, devices_left // role.slots - most)
        if spares < role.spare_nodes:
            fitting = f"{spares} of {role.spare_nodes} spare nodes"
            lines.append(f"{name}: {fitting}, as this machine has {len(devices)} devices")
        cap = {"nodes": min(role.nodes, most), "min_nodes": min(role.min_nodes, most), "spare_nodes": spares}
        roles[name] = replace(role, **cap, max_nodes=min(role.max_nodes, most))
        devices_left -= (most + spares) * role.slots
    return replace(spec, roles=roles), lines
