"""NVML as the package nvidia-ml-py offers it, for devices that are not there."""

# ruff: noqa: N802 (NVML has these names)

from dataclasses import dataclass
from types import SimpleNamespace


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818 (the package's own name)
    pass


@dataclass
class Device:
    uuid: str
    used: int = 0
    total: int = 80 << 30
    busy: int = 0
    to_device_kb: int = 0
    from_device_kb: int = 0
    uncorrected: int | None = 0
    reasons: int = 0
    is_part: bool = False
    """Of a device that is divided: it tells of its memory only."""

    def require_whole(self) -> None:
        if self.is_part:
            raise NVMLError_NotSupported("Not Supported")


class FakeNvml:
    """The functions that are used of it."""

    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
    NVMLError, NVMLError_NotSupported = NVMLError, NVMLError_NotSupported

    def __init__(self, *devices: Device) -> None:
        self.devices = devices

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        if index >= len(self.devices):
            raise NVMLError("Invalid Argument")
        return self.devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:
        return next(device for device in self.devices if device.uuid == uuid)

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> SimpleNamespace:
        return SimpleNamespace(used=device.used, total=device.total)

    def nvmlDeviceGetUtilizationRates(self, device: Device) -> SimpleNamespace:
        device.require_whole()
        return SimpleNamespace(gpu=device.busy)

    def nvmlDeviceGetPcieThroughput(self, device: Device, way: int) -> int:
        device.require_whole()
        return device.to_device_kb if way == self.NVML_PCIE_UTIL_RX_BYTES else device.from_device_kb

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: Device) -> int:
        device.require_whole()
        return device.reasons

    def nvmlDeviceGetTotalEccErrors(self, device: Device, kind: int, counter: int) -> int:
        assert (kind, counter) == (self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self.NVML_VOLATILE_ECC)
        if device.uncorrected is None:
            raise NVMLError_NotSupported("Not Supported")
        return device.uncorrected
