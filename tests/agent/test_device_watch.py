"""A node tells what its devices do, or why it cannot."""

import asyncio
import sys
import threading
from typing import Any

import pytest

from everstep.runtime.agent import device_watch
from everstep.runtime.agent.device_watch import DeviceWatch, line_of
from everstep.runtime.system.gpu_readings import DeviceReading
from tests.diagnosis.fake_nvml import Device, FakeNvml

DEADLINE_S = 60.0


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


def test_what_no_device_tells_is_left_out_of_the_line() -> None:
    part = DeviceReading(5, 10, None, None, None, None, None)
    assert line_of([part, part]) == {"kind": "devices", "devices": 2, "used_bytes": 10, "total_bytes": 20}
    line = line_of([part, DeviceReading(5, 10, 0.5, 3.0, 4.0, 2, ())])
    told = {name: line[name] for name in ("busy", "to_device", "from_device", "uncorrected", "lowered")}
    assert told == {"busy": 0.5, "to_device": 3.0, "from_device": 4.0, "uncorrected": 2, "lowered": ""}


@pytest.mark.parametrize("asked", ["open_nvml", "read_devices"])
def test_a_driver_that_hangs_keeps_neither_the_loop_nor_its_end_waiting(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, over, ended = threading.Event(), threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        hangs.set()
        over.wait(DEADLINE_S)
        ended.set()

    monkeypatch.setattr(device_watch, "open_nvml", lambda: FakeNvml(Device("GPU-a")))
    monkeypatch.setattr(device_watch, asked, hang)
    monkeypatch.setattr(device_watch, "EVERY_S", 0.0)

    async def run() -> None:
        watching = asyncio.create_task(DeviceWatch(("0",), print, print).run())
        assert await asyncio.to_thread(hangs.wait, DEADLINE_S)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(run())
    assert not ended.is_set(), "the loop has ended before the driver answers"
    over.set()


def test_the_device_of_a_local_rank_says_why_it_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(Device("GPU-a"), Device("GPU-b", reasons=0x8 | 0x40))
    monkeypatch.setattr(device_watch, "open_nvml", lambda: nvml)
    monkeypatch.setattr(device_watch, "EVERY_S", 0.0)

    async def run() -> list[str]:
        read = asyncio.Event()
        devices = DeviceWatch(("0", "1"), lambda _: read.set(), lambda _: None)
        watching = asyncio.create_task(devices.run())
        await asyncio.wait_for(read.wait(), 30)
        watching.cancel()
        return [devices.lowered(local_rank) for local_rank in range(3)]

    assert asyncio.run(run()) == ["", "the hardware slows it down, too hot (hardware)", ""]
