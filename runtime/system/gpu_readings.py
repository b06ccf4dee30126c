"""What the driver says of NVIDIA devices (NVML): memory, use, copies over the bus, memory errors, lowered clocks.

Reading makes no CUDA context. NVML counts devices in the order of the bus, as CUDA does where they are all of one kind,
or with CUDA_DEVICE_ORDER=PCI_BUS_ID. Needs the package nvidia-ml-py. Source: "NVML API Reference Guide". Never run on a
device.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

_LOWERED = {
    0x8: "the hardware slows it down",
    0x20: "too hot (driver)",
    0x40: "too hot (hardware)",
    0x80: "the power supply asks for it",
}
"""Bits of the reasons for lowered clocks (nvmlClocksEventReasons) that a healthy device does not show. Idleness, limits
that an administrator has set, and the power cap under load are left out."""
_REASONS = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
"""The second is for drivers that lack the first, as 525 does; nvidia-ml-py says that it drops it with CUDA 14."""


class NoReadingsError(RuntimeError):
    """There are no readings. The text says why, in one line."""


class DeviceReading(NamedTuple):
    """One device, now. None: it does not tell, as a part of a device (MIG) tells of its memory alone."""

    used_bytes: int
    total_bytes: int
    busy: float | None
    """Share of the last second or less in which something ran on it."""
    to_device: float | None
    """Bytes per second over its bus, within 20 ms."""
    from_device: float | None
    uncorrected: int | None
    """Memory errors since the driver was loaded that ECC could not correct; None also if it has no ECC."""
    lowered: tuple[str, ...] | None
    """Why its clocks are lower than they should be; empty if they are not."""


def open_nvml() -> Any:
    """The module pynvml, initialized. Raises NoReadingsError."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        raise NoReadingsError("the package nvidia-ml-py is not installed") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoReadingsError(f"NVML: {error}") from None
    return nvml


def read_devices(nvml: Any, names: Sequence[str]) -> list[DeviceReading]:
    """The devices that CUDA_VISIBLE_DEVICES would name so: numbers or UUIDs. Raises NoReadingsError."""
    try:
        return [_read(nvml, _handle(nvml, name)) for name in names]
    except nvml.NVMLError as error:
        raise NoReadingsError(f"NVML: {error}") from None


def _handle(nvml: Any, name: str) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)


def _read(nvml: Any, device: Any) -> DeviceReading:
    memory, rate = nvml.nvmlDeviceGetMemoryInfo(device), nvml.nvmlDeviceGetPcieThroughput
    ask = partial(_ask, nvml, device)
    use = ask(nvml.nvmlDeviceGetUtilizationRates)
    questions = (getattr(nvml, name) for name in _REASONS if hasattr(nvml, name))
    bits = next((bits for question in questions if (bits := ask(question)) is not None), None)
    errors = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return DeviceReading(
        used_bytes=memory.used,
        total_bytes=memory.total,
        busy=use.gpu / 100 if use else None,
        to_device=_bytes(ask(rate, nvml.NVML_PCIE_UTIL_RX_BYTES)),
        from_device=_bytes(ask(rate, nvml.NVML_PCIE_UTIL_TX_BYTES)),
        uncorrected=ask(nvml.nvmlDeviceGetTotalEccErrors, *errors),
        lowered=None if bits is None else tuple(why for bit, why in _LOWERED.items() if bits & bit),
    )


def _bytes(kilobytes: int | None) -> float | None:
    return None if kilobytes is None else kilobytes * 1000.0


def _ask(nvml: Any, device: Any, question: Callable[..., Any], *details: int) -> Any:
    """None if this kind of device, its driver or a sandbox around it does not tell. A lost device is noticed all the
    same: it does not tell of its memory either."""
    try:
        return question(device, *details)
    except nvml.NVMLError:
        return None
