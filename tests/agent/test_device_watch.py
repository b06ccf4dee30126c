"""A node tells what its devices do, or why it cannot."""

import asyncio
import sys
from typing import Any

import pytest

from everstep.runtime.agent import device_watch
from everstep.runtime.agent.device_watch import DeviceWatch
from tests.diagnosis.fake_nvml import Device, FakeNvml


def watch(names: tuple[str, ...], count: int = 1) -> tuple[list[dict[str, Any]], list[str]]:
    """What it adds and says until there are so many."""
    added, said, enough = list[dict[str, Any]](), list[str](), asyncio.Event()

    def note(to: list[Any], what: Any) -> None:
        to.append(what)
        if len(added) + len(said) >= count:
            enough.set()

    async def run() -> None:
        devices = DeviceWatch(names, lambda line: note(added, line), lambda text: note(said, text))
        watching = asyncio.create_task(devices.run())
        try:
            async with asyncio.timeout(30 if count else 0.01):
                await enough.wait()
        except TimeoutError:
            assert not count
        assert devices.lowered == (added[-1]["lowered"] if added else "")
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(run())
    return added, said


def test_each_reading_is_one_line_for_all_devices_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(Device("GPU-a", busy=50, used=3), Device("GPU-b"), Device("GPU-c", busy=100, used=4, reasons=0x20))
    monkeypatch.setattr(device_watch, "open_nvml", lambda: nvml)
    monkeypatch.setattr(device_watch, "EVERY_S", 0.0)
    added, said = watch(("0", "GPU-c"), count=2)
    assert said == []
    assert added[0] == added[1]
    assert added[0] == {
        "kind": "devices", "devices": 2, "used_bytes": 7, "total_bytes": 160 << 30, "busy": 0.75, "to_device": 0.0,
        "from_device": 0.0, "uncorrected": 0, "lowered": "too hot (driver)",
    }  # fmt: skip


def test_a_driver_that_fails_later_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_watch, "open_nvml", lambda: FakeNvml(Device("GPU-a")))
    monkeypatch.setattr(device_watch, "EVERY_S", 0.0)
    assert watch(("3",)) == ([], ["telemetry has nothing of this node's devices: NVML: Invalid Argument"])


def test_a_missing_package_is_said_and_a_node_without_devices_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    why = "telemetry has nothing of this node's devices: the package nvidia-ml-py is not installed"
    assert watch(("0",)) == ([], [why])
    assert watch((), count=0) == ([], [])
