"""The work of a machine's own CUDA devices in a check: products, memory, copies, and collectives by NCCL between them.

Every error names its device: `cuda:3: ...`. Needs torch with CUDA. Written after PyTorch's documentation (CUDA events,
`torch.cuda.nccl`, ProcessGroupNCCL); it was never run on a device here.
"""

# torch.cuda.nccl has no type stubs.
# pyright: reportUnknownMemberType=false, reportPrivateImportUsage=false

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from everstep.runtime.diagnosis.evidence import DeviceFinding
from everstep.runtime.job.error_kinds import OUT_OF_GPU_MEMORY
from everstep.runtime.platform.devices import VARIABLE, VARIABLES, machine_devices, may_have_devices
from everstep.runtime.system.gpu_readings import DeviceReading, NoReadingsError, open_nvml, read_devices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from torch.distributed import Store

T = TypeVar("T")
Note = Callable[[str], object]
"""Takes what is done next: should it hang or crash, that is known."""

MATRIX_SIZE = 8192
"""Rows and columns of the matrices, float32: 1.1 TFLOP a product."""
PRODUCTS = 4
MEMORY_SHARE = 0.5
"""Share of a device's free memory that is written and read back; the short test takes SHORT_BYTES."""
SHORT_BYTES = 1 << 30
LEAST_BYTES = 1 << 20
"""A device with less free memory cannot be tested."""
COPIED_BYTES = 256 << 20
REDUCED_BYTES = 64 << 20
"""As DLRover's check."""
SLOWEST_COPY = 1e9
"""Bytes per second between host and device below which the device's bus is faulty: a quarter of PCIe 3.0 x4."""
_NO_DEVICE = "none"
SLOW_FACTOR = 2.0
"""A device that takes this many times as long as the fastest one of its machine is slow."""
_ON_NCCL_ERRORS = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
"""The thread that waits for a failed all-reduce gets an error. By default torch's watchdog ends the process, also that
of an innocent member (ProcessGroupNCCL.cpp, `synchronizeInternal`)."""


class DeviceError(RuntimeError):
    """A device is unfit. The text names it."""


class FullDeviceError(RuntimeError):
    """A device has too little free memory to be tested; it may be fit. The text names it."""


@dataclass(frozen=True)
class DeviceWork:
    """What a machine's devices have measured."""

    devices: tuple[DeviceFinding, ...]
    """Without those that have too little free memory."""
    collectives_s: float
    """Seconds of all collectives between them; 0 with one device."""
    unread: str
    """What the driver was not asked, or did not tell, and why; empty if it told of all."""
    untested: str = ""
    """Which devices were not tested, and why; empty if all were."""

    @property
    def matmul_s(self) -> float:
        """Seconds of the slowest device's products; 0 if none was tested."""
        return max((device.matmul_s for device in self.devices), default=0.0)


def device_count() -> int:
    """The CUDA devices of this machine; 0 without CUDA. Initializes CUDA in this process."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def require_all_seen(seen: int, environment: Mapping[str, str] = os.environ, folder: Path = Path("/dev")) -> None:
    """Raises DeviceError if CUDA sees fewer devices than are listed, or than this process may open: of a driver that
    fails torch counts none, and the node would train on CPUs.

    Only where there is a driver, and torch with CUDA. Of parts of devices (MIG) CUDA shows one, and no file tells how
    many there are.
    """
    import torch

    names = machine_devices(environment, folder, lambda: 0)
    is_listed = any(name in environment for name in VARIABLES)
    if torch.version.cuda is None or seen >= len(names) or not may_have_devices({}, folder):
        return
    if any(name.startswith("MIG-") for name in names) or any(map(_is_part, range(seen))):
        return
    expected = len(names) - (0 if is_listed else sum(map(_is_closed, folder.glob("nvidia[0-9]*"))))
    if seen < expected:
        where = "listed" if is_listed else f"in {folder}"
        remedy = f"look at the driver's log (dmesg), or hide them ({VARIABLE}=)"
        raise DeviceError(f"CUDA sees {seen} of {expected} devices that are {where}: {remedy}")


def _is_part(device: int) -> bool:
    import torch

    with _blaming(f"cuda:{device}"):
        return " MIG " in torch.cuda.get_device_name(device)
    return False


def _is_closed(path: Path) -> bool:
    """May this process not open it, as where a container's or Slurm's control group keeps it from devices of others?"""
    try:
        os.close(os.open(path, os.O_RDWR))
    except PermissionError:
        return True
    except OSError:  # Of a device that fails.
        return False
    return False


def own_devices() -> list[str]:
    """What tells each of this process's CUDA devices from all others. Initializes CUDA."""
    import torch

    return [str(torch.cuda.get_device_properties(device).uuid) for device in range(device_count())]


def agree_on_nccl(store: "Store", rank: int, world: int, own: Sequence[str]) -> int:
    """How many devices each rank of the group has at least; 0 if two ranks have one in common, which NCCL refuses.
    Every rank must call it; `own` are its `own_devices()`. Raises RuntimeError if a rank is gone."""
    store.set(f"devices-{rank}", ",".join(own) or _NO_DEVICE)
    answers = [store.get(f"devices-{other}").decode() for other in range(world)]
    devices = [[] if answer == _NO_DEVICE else answer.split(",") for answer in answers]
    are_own = len({name for names in devices for name in names}) == sum(map(len, devices))
    return min(map(len, devices)) if are_own else 0


def exercise_devices(count: int, short: bool, note: Note = lambda what: None) -> DeviceWork:
    """Test each device, then all together. `short`: less memory, for a restart. Raises DeviceError."""
    nvml, unread = None, list[str]()
    note("NVML")
    try:
        nvml = open_nvml()
    except NoReadingsError as error:
        unread.append(str(error))
    names = machine_devices(os.environ, count=lambda: count)
    findings, untested, collectives_s = list[DeviceFinding](), list[str](), 0.0
    for device in range(count):
        with _forgiving_full(untested):
            findings.append(_test_device(device, short, partial(_read, nvml, names, device, unread), note))
    require_fit(findings)
    if len(findings) == count > 1:
        with _forgiving_full(untested):
            collectives_s = _time_collectives(count, note)
    return DeviceWork(tuple(findings), collectives_s, "; ".join(unread), "; ".join(untested))


def require_fit(findings: Sequence[DeviceFinding]) -> None:
    """Raises DeviceError for a device with memory errors, or that is much slower than the fastest. Pure."""
    fastest_s = min((finding.matmul_s for finding in findings), default=0.0)
    for finding in findings:
        if finding.uncorrected:
            raise DeviceError(
                f"{finding.device}: {finding.uncorrected} memory errors that ECC could not correct since its driver "
                "was loaded; reset it, or replace it"
            )
        if finding.matmul_s > SLOW_FACTOR * fastest_s:
            why = f" ({', '.join(finding.lowered)})" if finding.lowered else ""
            raise DeviceError(
                f"{finding.device}: matmul took {finding.matmul_s:.2f} s, the fastest device {fastest_s:.2f} s{why}"
            )


def _test_device(device: int, short: bool, read: Callable[[], DeviceReading | None], note: Note) -> DeviceFinding:
    with _blaming(f"cuda:{device}: memory", note):
        _test_memory(device, short)
    with _blaming(f"cuda:{device}: copy", note):
        to_host, to_device = _test_copies(device)
    with _blaming(f"cuda:{device}: matmul", note):
        seconds, reading = _time_products(device, read)
    facts = {"lowered": reading.lowered, "uncorrected": reading.uncorrected} if reading else {}
    return DeviceFinding(f"cuda:{device}", seconds, to_host / 1e6, to_device / 1e6, **facts)


def _read(nvml: Any, names: Sequence[str], device: int, unread: list[str]) -> DeviceReading | None:
    """What the driver says of that device now; None if it does not, and `unread` gets why."""
    if nvml is None or device >= len(names):
        return None
    try:
        return read_devices(nvml, names[device : device + 1])[0]
    except NoReadingsError as error:
        unread.append(f"cuda:{device}: {error}")
        return None


def _test_memory(device: int, short: bool) -> None:
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    size = int(min(free * MEMORY_SHARE, SHORT_BYTES if short else free))
    for pattern in (0x55, 0xAA):
        block = _fill(size, pattern, device)
        if int(block.min()) != pattern or int(block.max()) != pattern:
            raise DeviceError("bytes read back are not those that were written")
        del block
    torch.cuda.empty_cache()


def _fill(size: int, pattern: int, device: int) -> "Tensor":
    """A block of so many bytes, or of fewer, if another process has taken the memory meanwhile: what it checks too, as
    where nodes of one machine share a device, is no fault."""
    import torch

    while True:
        try:
            return torch.full((size,), pattern, dtype=torch.uint8, device=f"cuda:{device}")
        except torch.OutOfMemoryError:
            size //= 2
            if size < LEAST_BYTES:
                raise


def _test_copies(device: int) -> tuple[float, float]:
    """Bytes per second to the host, and from it."""
    import torch

    on_device = torch.full((COPIED_BYTES,), 7, dtype=torch.uint8, device=f"cuda:{device}")
    on_host = torch.zeros(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    rates = list[float]()
    for target, source in ((on_host, on_device), (on_device, on_host)):
        target.copy_(source)  # The first copy sets up the mapping.
        seconds = _seconds_on(device, lambda to=target, of=source: to.copy_(of, non_blocking=True))
        rates.append(COPIED_BYTES / seconds)
        if COPIED_BYTES / seconds < SLOWEST_COPY:
            raise DeviceError(f"{COPIED_BYTES / seconds / 1e6:.0f} MB/s, at least {SLOWEST_COPY / 1e6:.0f} are usual")
    if int(on_host.min()) != 7 or int(on_host.max()) != 7:
        raise DeviceError("copied bytes arrived wrong")
    return rates[0], rates[1]


def _time_products(device: int, read: Callable[[], T]) -> tuple[float, T]:
    """Seconds of the products, and what `read` returns while they run."""
    import torch

    place = torch.device(f"cuda:{device}")
    factor_a = (torch.arange(MATRIX_SIZE * MATRIX_SIZE, device=place) % 7).float().view(MATRIX_SIZE, MATRIX_SIZE)
    right = (torch.arange(MATRIX_SIZE * MATRIX_SIZE, device=place) % 5).float().view(MATRIX_SIZE, MATRIX_SIZE)
    expected_sum = (factor_a.double().sum(0) @ right.double()).sum().item()
    product = torch.mm(factor_a, right)

    def multiply() -> None:
        for _ in range(PRODUCTS):
            torch.mm(factor_a, right, out=product)

    meanwhile: list[T] = []
    seconds = _seconds_on(device, multiply, lambda: meanwhile.append(read()))
    # The factors are integers below 8, exact in TF32, and the sums below 2^24, exact in float32.
    if product.double().sum().item() != expected_sum:
        raise DeviceError("the product is wrong")
    return seconds, meanwhile[0]


def _time_collectives(count: int, note: Note) -> float:
    """All-reduce and all-gather among the devices of this machine, in one process."""
    import torch
    from torch.cuda import nccl

    seconds = 0.0
    with _blaming("between the devices of this machine: NCCL", note):
        torch.cuda.empty_cache()  # NCCL allocates beside torch.
        values = [
            torch.full((REDUCED_BYTES // 4,), float(device + 1), device=f"cuda:{device}") for device in range(count)
        ]
        seconds += _seconds_on(0, lambda: nccl.all_reduce(values))
        expected_sum = count * (count + 1) / 2
        for device, value in enumerate(values):
            if value.min().item() != expected_sum or value.max().item() != expected_sum:
                raise DeviceError(f"cuda:{device} has a wrong sum")
        parts = [torch.full((1 << 20,), float(device), device=f"cuda:{device}") for device in range(count)]
        tensors_gathered = [torch.empty(count << 20, device=f"cuda:{device}") for device in range(count)]
        seconds += _seconds_on(0, lambda: nccl.all_gather(parts, tensors_gathered))
        for device, whole in enumerate(tensors_gathered):
            if [int(part.max()) for part in whole.chunk(count)] != list(range(count)):
                raise DeviceError(f"cuda:{device} gathered wrong values")
    return seconds


def time_group_all_reduce(
    store: "Store",
    rank: int,
    world: int,
    timeout_s: float,
    times: int,
    devices: int,
    note: Note = lambda what: None,
) -> float:
    """Seconds for `times` all-reduces by NCCL of REDUCED_BYTES among the first devices of `world` machines, beside
    those among their second ones, and so on: each may have a network card of its own.

    Call it in a process of its own: it changes how NCCL's errors end. Raises RuntimeError if a member is gone or a wait
    takes more than `timeout_s`, DeviceError for a wrong sum.
    """
    import torch
    from torch.distributed import PrefixStore, ProcessGroupNCCL

    os.environ.update(_ON_NCCL_ERRORS)
    options: Any = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s)
    groups, values = list[Any](), list["Tensor"]()
    for device in range(devices):
        with _blaming(f"cuda:{device}", note):
            groups.append(ProcessGroupNCCL(PrefixStore(f"{device}", store), rank, world, options))
            values.append(torch.empty(REDUCED_BYTES // 4, device=f"cuda:{device}"))
            groups[-1].allreduce([torch.zeros(1, device=f"cuda:{device}")]).wait()
            torch.cuda.synchronize(device)

    def reduce_all() -> None:
        works = [group.allreduce([value]) for group, value in zip(groups, values, strict=True)]
        for device, work in enumerate(works):
            with _blaming(f"cuda:{device}", note):
                work.wait()

    seconds = 0.0
    for _ in range(times):
        for value in values:
            value.fill_(rank + 1)
        seconds += _seconds_on(0, reduce_all)
    expected_sum = world * (world + 1) / 2
    for device, value in enumerate(values):
        if value.min().item() != expected_sum or value.max().item() != expected_sum:
            raise DeviceError(f"cuda:{device}: all-reduce gave a wrong sum: a broken link or memory")
    return seconds


def _seconds_on(device: int, work: Callable[[], object], beside: Callable[[], object] = lambda: None) -> float:
    """Seconds that the device spends on what `work` queues; `beside` is called meanwhile."""
    import torch

    with torch.cuda.device(device):
        torch.cuda.synchronize(device)
        began, end_event = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        work()
        end_event.record()
        beside()
        end_event.synchronize()
    return began.elapsed_time(end_event) / 1000


@contextmanager
def _blaming(what: str, note: Note = lambda what: None) -> "Iterator[None]":
    """Errors in the block are reported as those of `what`: FullDeviceError for missing memory, else DeviceError."""
    note(what)
    try:
        yield
    except RuntimeError as error:  # Also torch's own: out of memory, a lost device, NCCL's.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        kind = FullDeviceError if OUT_OF_GPU_MEMORY.matches(str(error), 1) else DeviceError
        raise kind(f"{what}: {lines[0][:300]}") from error


@contextmanager
def _forgiving_full(untested: list[str]) -> "Iterator[None]":
    """The block ends where a device is full; `untested` then says so."""
    try:
        yield
    except FullDeviceError as error:
        untested.append(str(error))
