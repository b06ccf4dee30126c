"""Pairs of devices behind a switch box: reading, the rule, and the real copies where there are devices."""

import pytest

from everstep.runtime.diagnosis.switchbox import (
    CudaLinkProbe,
    SwitchboxError,
    SwitchboxSpec,
    fault_reason,
    measure,
    missing_devices,
    parse_switchbox,
)


def test_pairs_are_read_as_device_numbers() -> None:
    box = parse_switchbox("0:1 2:4 3:5 6:7", 10000, 2)
    assert box == SwitchboxSpec(((0, 1), (2, 4), (3, 5), (6, 7)), 10000, 2)
    assert box.devices == 8


@pytest.mark.parametrize(
    ("pairs", "bandwidth", "channels", "words"),
    [
        ("", 1, 1, "no pairs"),
        ("0:1 2", 1, 1, "'2' is not DEVICE:DEVICE"),
        ("0:x", 1, 1, "'0:x' is not DEVICE:DEVICE"),
        ("0:-1", 1, 1, "'0:-1' is not DEVICE:DEVICE"),
        ("0:1 1:2", 1, 1, "device 1 of '1:2' is named twice"),
        ("3:3", 1, 1, "device 3 of '3:3' is named twice"),
        ("0:1", 0, 1, "--min-bandwidth 0"),
        ("0:1", float("nan"), 1, "--min-bandwidth nan"),
        ("0:1", 1, 0, "--min-channels 0: must be from 1 to 1, the --box-pairs given"),
        ("0:1", 1, 2, "--min-channels 2"),
    ],
)
def test_pairs_that_cannot_be_are_refused_by_name(pairs: str, bandwidth: float, channels: int, words: str) -> None:
    with pytest.raises(SwitchboxError, match=words):
        parse_switchbox(pairs, bandwidth, channels)


def test_a_machine_with_enough_working_pairs_passes_though_a_link_is_slow() -> None:
    box = parse_switchbox("0:1 2:4 3:5", 10000, 2)
    assert fault_reason(box, {"0:1": 10000.0, "2:4": 9999.9, "3:5": 25000.0}) == ""


def test_a_machine_with_fewer_working_pairs_is_faulty_and_the_slow_ones_are_named() -> None:
    box = parse_switchbox("0:1 2:4 3:5", 10000, 2)
    reason = fault_reason(box, {"0:1": 812.4, "2:4": 0.0, "3:5": 25000.0})
    assert reason == "switchbox: 1 of 3 pairs work, 2 needed (0:1 812 MB/s, 2:4 0 MB/s)"


def test_a_copy_that_fails_counts_as_no_bandwidth() -> None:
    class Broken:
        def bandwidth(self, first: int, second: int) -> float:
            if first == 0:
                raise RuntimeError("uncorrectable error")
            return 20000.0

    bandwidths, why = measure(parse_switchbox("0:1 2:3", 10000, 2), Broken())
    assert bandwidths == {"0:1": 0.0, "2:3": 20000.0}
    assert why.startswith("switchbox: 1 of 2 pairs work")


def test_missing_devices_are_told_before_anything_is_measured() -> None:
    box = parse_switchbox("0:1 2:4", 10000, 1)
    assert missing_devices(box, 5) == ""
    assert missing_devices(box, 0).endswith("needs devices 0 to 4, this machine has no CUDA device")
    assert missing_devices(box, 1).endswith("this machine has 1 CUDA device")


def test_real_copies_between_two_devices_reach_some_bandwidth() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    assert CudaLinkProbe().bandwidth(0, 1) > 0
