"""What a check says of devices, from what they measured and what their driver says. No device is needed."""

import errno
import io
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from everstep.runtime.diagnosis import devices, report, workload
from everstep.runtime.diagnosis.devices import (
    DeviceError,
    DeviceWork,
    Note,
    _fill,
    agree_on_nccl,
    exercise_devices,
    require_all_seen,
    require_fit,
)
from everstep.runtime.diagnosis.evidence import FAILED_S, DeviceFinding, Measurement, Round
from everstep.runtime.diagnosis.single_machine import _share_devices
from everstep.runtime.diagnosis.verdicts import judge
from everstep.runtime.system.gpu_readings import DeviceReading, NoReadingsError, open_nvml, read_devices
from tests.checkpoint.cuda_stand_in import stand_in
from tests.diagnosis.fake_nvml import Device, FakeNvml

WELL = DeviceFinding("cuda:0", 0.1, 50_000.0, 52_000.0, (), 0)

Tests = dict[str, Callable[..., object]]


def device_tests(monkeypatch: pytest.MonkeyPatch, changes: Tests) -> None:
    """Stand-ins for the tests of devices without a driver: all pass, but for `changes`, by name."""

    def no_driver() -> None:
        raise NoReadingsError("no driver")

    tests: Tests = {
        "_test_memory": lambda device, short: None,
        "_test_copies": lambda device: (50e9, 52e9),
        "_time_products": lambda device, read: (0.1, read()),
        "_time_collectives": lambda count, note: 0.2,
    }
    monkeypatch.setattr(devices, "open_nvml", no_driver)
    for name, test in {**tests, **changes}.items():
        monkeypatch.setattr(devices, name, test)


def test_what_the_driver_says_of_each_device_by_number_or_uuid() -> None:
    nvml = FakeNvml(Device("GPU-a"), Device("GPU-b", 5 << 30, 80 << 30, 93, 2_000, 1_000, 2, 0x4 | 0x40 | 0x1))
    (by_number,), (by_uuid,) = read_devices(nvml, ["1"]), read_devices(nvml, ["GPU-b"])
    assert by_number == by_uuid
    assert (by_number.used_bytes, by_number.total_bytes, by_number.busy) == (5 << 30, 80 << 30, 0.93)
    assert (by_number.to_device, by_number.from_device) == (2e6, 1e6)
    assert by_number.uncorrected == 2
    assert by_number.lowered == ("too hot (hardware)",)  # Idleness and the power cap are no fault.


def test_a_device_without_ecc_has_no_count_and_a_missing_one_is_said() -> None:
    nvml = FakeNvml(Device("GPU-a", uncorrected=None))
    assert read_devices(nvml, ["0"])[0].uncorrected is None
    with pytest.raises(NoReadingsError, match="NVML: Invalid Argument"):
        read_devices(nvml, ["1"])


def test_a_part_of_a_device_tells_of_its_memory_only() -> None:
    nvml = FakeNvml(Device("MIG-a", 5 << 30, 10 << 30, 93, 2_000, 1_000, None, 0x40, is_part=True))
    assert read_devices(nvml, ["MIG-a"]) == [DeviceReading(5 << 30, 10 << 30, None, None, None, None, None)]


def test_what_a_driver_does_not_tell_hides_nothing_else() -> None:
    nvml = FakeNvml(Device("GPU-a", used=5 << 30, uncorrected=2, busy=50))

    def refuse(*_: object) -> int:
        raise nvml.NVMLError("Insufficient Permissions")

    nvml.nvmlDeviceGetPcieThroughput = refuse  # type: ignore[method-assign]
    (reading,) = read_devices(nvml, ["0"])
    assert (reading.used_bytes, reading.busy, reading.uncorrected, reading.from_device) == (5 << 30, 0.5, 2, None)


def test_an_old_driver_tells_of_lowered_clocks_by_their_old_name() -> None:
    nvml = FakeNvml(Device("GPU-a", reasons=0x40))

    def refuse(_: Device) -> int:
        raise nvml.NVMLError("Function Not Found")

    nvml.nvmlDeviceGetCurrentClocksEventReasons = refuse  # type: ignore[method-assign]
    assert read_devices(nvml, ["0"])[0].lowered is None, "and a package without the old name is no error"
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda device: device.reasons  # type: ignore[attr-defined]
    assert read_devices(nvml, ["0"])[0].lowered == ("too hot (hardware)",)


def test_without_the_package_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoReadingsError, match="nvidia-ml-py is not installed"):
        open_nvml()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"uncorrected": 3}, "cuda:1: 3 memory errors that ECC could not correct since its driver was loaded"),
        ({"matmul_s": 0.3}, "cuda:1: matmul took 0.30 s, the fastest device 0.10 s"),
        ({"matmul_s": 0.3, "lowered": ("too hot (driver)",)}, r"the fastest device 0.10 s \(too hot \(driver\)\)"),
    ],
)
def test_an_unfit_device_is_named_with_what_is_wrong(change: dict[str, object], text: str) -> None:
    with pytest.raises(DeviceError, match=text):
        require_fit([WELL, replace(WELL, device="cuda:1", **change)])


@pytest.mark.parametrize(
    ("own", "other", "count"),
    [
        (["GPU-a"], ["GPU-b"], 1),
        (["GPU-a", "GPU-b", "GPU-c"], ["GPU-d", "GPU-e"], 2),
        (["GPU-a", "GPU-b"], ["GPU-c", "GPU-a"], 0),
        (["GPU-a"], ["GPU-a"], 0),
        (["GPU-a"], [], 0),
        ([], [], 0),
    ],
)
def test_nccl_is_used_with_as_many_devices_as_each_rank_has_of_its_own_and_all_ranks_agree(
    own: list[str], other: list[str], count: int
) -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as threads:
        ranks = enumerate((own, other))
        answers = [threads.submit(agree_on_nccl, store, rank, 2, names) for rank, names in ranks]
    assert [answer.result() for answer in answers] == [count, count]


def test_nodes_of_one_machine_share_out_its_devices_if_there_are_enough() -> None:
    assert _share_devices(["a", "b"], ["0", "1", "GPU-c", "3", "4"]) == {"a": "0,1", "b": "GPU-c,3"}
    assert _share_devices(["a", "b"], ["0"]) == _share_devices(["a"], []) == {}


def test_memory_that_another_process_has_taken_meanwhile_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    full, sizes, room = torch.full, list[int](), 3 << 20

    def fill(shape: tuple[int], *arguments: object, device: str, **more: Any) -> torch.Tensor:
        assert device == "cuda:1"
        sizes.append(shape[0])
        if shape[0] > room:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return full(shape, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(torch, "full", fill)
    assert _fill(8 << 20, 0x55, 1).numel() == 2 << 20
    assert sizes == [8 << 20, 4 << 20, 2 << 20]
    room = 0
    with pytest.raises(torch.OutOfMemoryError):
        _fill(8 << 20, 0x55, 1)


@pytest.mark.parametrize(
    ("test", "stage"), [("_test_memory", "memory"), ("_test_copies", "copy"), ("_time_products", "matmul")]
)
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
    ],
    ids=["of torch", "of CUDA"],
)
def test_a_full_device_is_not_tested_and_the_others_are(
    test: str, stage: str, error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = {"_test_memory": None, "_test_copies": (50e9, 52e9), "_time_products": (0.1, None)}[test]

    def run_out(device: int, *_: object) -> object:
        if device == 1:
            raise error
        return passes

    device_tests(monkeypatch, {test: run_out})
    done = exercise_devices(3, short=True)
    assert [of.device for of in done.devices] == ["cuda:0", "cuda:2"]
    assert done.untested == f"cuda:1: {stage}: {error}"
    assert done.collectives_s == 0.0, "there is none without it"


def test_collectives_for_which_there_is_no_memory_are_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    def collect(count: int, note: Note) -> float:
        with devices._blaming("between the devices of this machine: NCCL"):
            raise torch.OutOfMemoryError("CUDA out of memory.")

    device_tests(monkeypatch, {"_time_collectives": collect})
    done = exercise_devices(2, short=False)
    assert (len(done.devices), done.collectives_s) == (2, 0.0)
    assert done.untested == "between the devices of this machine: NCCL: CUDA out of memory."


def test_another_error_of_a_device_makes_it_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: int) -> object:
        raise RuntimeError("CUDA error: unknown error")

    device_tests(monkeypatch, {"_test_copies": fail})
    with pytest.raises(DeviceError, match="cuda:0: copy: CUDA error: unknown error"):
        exercise_devices(1, short=True)


def test_a_node_whose_devices_are_full_passes_with_the_times_of_its_cpus_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workload, "device_count", lambda: 1)
    full = DeviceWork((), 0.0, "", "cuda:0: memory: CUDA out of memory.")
    monkeypatch.setattr(workload, "exercise_devices", lambda count, short, note: full)
    measured = workload.work_alone(Measurement("a", "gpu-7"), 1)
    assert measured.works_alone
    assert measured.matmul_s > 0
    assert not measured.error
    rounds = [Round(1, (("a",),), "alone", {"a": measured})]
    assert report.device_lines(rounds) == ["a on gpu-7: not tested: cuda:0: memory: CUDA out of memory."]


def test_a_device_whose_driver_does_not_tell_is_named_and_the_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    device_tests(monkeypatch, {"open_nvml": lambda: FakeNvml(Device("GPU-a"))})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    done = exercise_devices(2, short=True)
    assert [(of.uncorrected, of.lowered) for of in done.devices] == [(0, ()), (None, None)]
    assert done.unread == "cuda:1: NVML: Invalid Argument"


def test_what_is_done_next_is_noted_before_it_may_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    noted, at_copies = list[str](), list[str]()
    device_tests(monkeypatch, {"_test_copies": lambda device: (at_copies.append(noted[-1]), 50e9, 52e9)[1:]})
    exercise_devices(2, True, noted.append)
    assert at_copies == ["cuda:0: copy", "cuda:1: copy"]


Seen = Callable[..., None]


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """`require_all_seen` on a machine with these files of its driver, torch with CUDA, and devices of this name."""

    def require(
        count: int, *files: str, name: str = "NVIDIA H100", cuda: str | None = "13.0", **environment: str
    ) -> None:
        for file in files:
            (tmp_path / file).write_text("")
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        require_all_seen(count, environment, tmp_path)

    return require


EIGHT = [f"nvidia{number}" for number in range(8)]


def test_a_node_whose_driver_shows_fewer_devices_than_it_has_is_unfit(seen: Seen) -> None:
    with pytest.raises(DeviceError, match=r"CUDA sees 0 of 8 devices that are in .*: look at the driver's log"):
        seen(0, *EIGHT)
    with pytest.raises(DeviceError, match="CUDA sees 7 of 8 devices that are in "):
        seen(7, *EIGHT)
    with pytest.raises(DeviceError, match="CUDA sees 1 of 2 devices that are listed: "):
        seen(1, *EIGHT, CUDA_VISIBLE_DEVICES="3,GPU-b")
    with pytest.raises(DeviceError, match="CUDA sees 0 of 1 devices that are listed: "):
        seen(0, "dxg", CUDA_VISIBLE_DEVICES="0")


def test_devices_that_are_hidden_or_parts_or_not_for_this_torch_or_of_no_driver_are_not_missed(seen: Seen) -> None:
    seen(0, CUDA_VISIBLE_DEVICES="0,1")
    seen(0, "dxg", "kfd")
    seen(0, *EIGHT, CUDA_VISIBLE_DEVICES="")
    seen(0, *EIGHT, CUDA_VISIBLE_DEVICES="-1")
    seen(8, *EIGHT)
    seen(1, *EIGHT, CUDA_VISIBLE_DEVICES="MIG-a,MIG-b")
    seen(1, *EIGHT, name="NVIDIA H100 MIG 1g.10gb")
    seen(0, *EIGHT, cuda=None)


def test_devices_that_a_control_group_keeps_from_this_process_are_not_missed(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, errors = os.open, {"5": errno.EIO, "6": errno.EPERM, "7": errno.EACCES}

    def refuse(path: Any, flags: int, *more: Any, **named: Any) -> int:
        number = Path(path).name.removeprefix("nvidia")
        if flags == os.O_RDWR and number in errors:
            raise OSError(errors[number], "refused")
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    seen(6, *EIGHT)
    with pytest.raises(DeviceError, match="CUDA sees 5 of 6 devices that are in "):
        seen(5, *EIGHT)


def test_errors_of_nccl_are_raised_and_end_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Group:
        Options = SimpleNamespace

        def __init__(self, *_: object) -> None:
            raise RuntimeError("NCCL error")

    for name in ("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING"):
        monkeypatch.setenv(name, "3")
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Group, raising=False)
    with pytest.raises(RuntimeError, match="NCCL error"):
        devices.time_group_all_reduce(HashStore(), 0, 2, 1.0, 1, 1)
    assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1", "whoever waits gets the error, and there is no watchdog"
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


@pytest.mark.parametrize(
    ("broken", "text"),
    [("nothing", ""), ("a sum", "cuda:2: all-reduce gave a wrong sum"), ("a card", "cuda:2: NCCL error")],
)
def test_each_device_reduces_with_those_of_its_number_and_one_that_cannot_is_named(
    broken: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, own=0)
    monkeypatch.setattr(devices, "REDUCED_BYTES", 64)
    for name in devices._ON_NCCL_ERRORS:
        monkeypatch.setenv(name, "3")
    reduced = list[int]()

    class Group:
        Options = SimpleNamespace
        made = 0

        def __init__(self, store: Any, rank: int, world: int, options: object) -> None:
            self.number, Group.made = Group.made, Group.made + 1
            store.set("group", "made")  # Each has keys of its own.

        def allreduce(self, tensors: list[torch.Tensor]) -> SimpleNamespace:
            reduced.append(self.number)

            def wait() -> None:
                if (self.number, broken) == (2, "a card"):
                    raise RuntimeError("NCCL error")
                tensors[0].fill_(4.0 if (self.number, broken) == (2, "a sum") else 3.0)

            return SimpleNamespace(wait=wait)

    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Group, raising=False)
    store = HashStore()
    if text:
        with pytest.raises(DeviceError, match=text):
            devices.time_group_all_reduce(store, 0, 2, 1.0, 2, 4)
        return
    assert devices.time_group_all_reduce(store, 0, 2, 1.0, 2, 4) > 0
    assert reduced == [0, 1, 2, 3] * 3
    assert all(store.check([f"{number}/group"]) for number in range(4))


def test_devices_that_are_alike_or_only_hot_pass() -> None:
    require_fit([WELL, replace(WELL, device="cuda:1", matmul_s=0.19, lowered=("too hot (driver)",), uncorrected=None)])


def test_a_verdict_names_host_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(count: int, short: bool, note: Note) -> DeviceWork:
        raise DeviceError("cuda:3: memory: bytes read back are not those that were written")

    monkeypatch.setattr(workload, "device_count", lambda: 4)
    monkeypatch.setattr(workload, "exercise_devices", broken)
    measured = workload.work_alone(Measurement("worker-1-0", "gpu-7"), 1)
    assert measured.matmul_s == FAILED_S
    (verdict,) = judge(["worker-1-0"], ["gpu-7"], [Round(1, (("worker-1-0",),), "alone", {"worker-1-0": measured})])
    assert verdict.reason.startswith("gpu-7, cuda:3: memory: ")


def test_what_devices_measured_is_reported_and_lowered_clocks_are_said_of_a_node_that_passes() -> None:
    hot = replace(WELL, device="cuda:1", lowered=("too hot (driver)",))
    fit = Measurement("a", "gpu-1", 0.1, 0.1, 0.1, devices=(WELL, hot))
    deaf = replace(fit, node="b", host="gpu-2", devices=(WELL,), unread="the package nvidia-ml-py is not installed")
    rounds = [Round(1, (("a", "b"),), "pairs", {"a": fit, "b": deaf})]
    verdicts = judge(["a", "b"], ["gpu-1", "gpu-2"], rounds)
    assert report.device_lines(rounds) == [
        "a on gpu-1, cuda:1: too hot (driver)",
        "b on gpu-2: memory errors and clocks of its devices were not read: the package nvidia-ml-py is not installed",
    ]
    out = io.StringIO()
    report.print_verdicts(out, verdicts, rounds)
    assert "a on gpu-1, cuda:1: too hot (driver)\n" in out.getvalue()
    nodes = json.loads(json.dumps(report.json_report(verdicts, rounds, 2)))["nodes"]
    assert nodes[0]["devices"][1] == {
        "device": "cuda:1", "matmul_s": 0.1, "to_host": 50_000.0, "to_device": 52_000.0,
        "lowered": ["too hot (driver)"], "uncorrected": 0,
    }  # fmt: skip
