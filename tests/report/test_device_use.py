"""What the report says of staged bytes, of copies beside training, and of devices."""

import pytest

from everstep.runtime.agent.device_watch import line_of
from everstep.runtime.report import Run, history, render
from everstep.runtime.report.device_use import DeviceUse
from everstep.runtime.report.summary import summary
from everstep.runtime.system.gpu_readings import DeviceReading


def reading(used: int, busy: float, lowered: tuple[str, ...] = (), uncorrected: int | None = 0) -> DeviceReading:
    return DeviceReading(used, 80, busy, 10.0, 20.0, uncorrected, lowered)


def told(node: str, *readings: DeviceReading) -> dict[str, object]:
    return {"v": 1, "time": 1.0, "node": node, **line_of(readings)}


def point(iteration: int, **more: float) -> dict[str, object]:
    return {"v": 1, "time": float(iteration), "round": 1, "iteration": iteration, "rank": 0, "seconds": 1.0, **more}


def test_a_nodes_devices_are_told_with_the_most_memory_and_the_mean_use() -> None:
    lines = [
        told("a", reading(10, 0.5), reading(30, 1.0)),
        told("a", reading(20, 0.1, ("too hot (driver)",)), reading(10, 0.3, (), None)),
        told("a", reading(5, 0.55), reading(5, 0.55, (), 2)),
        told("b", reading(1, 0.0)),
    ]
    devices = history([], lines).devices
    assert devices["a"] == DeviceUse(2, 40.0, 160.0, 0.5, 20.0, 40.0, 2,
                                     "too hot (driver)", 3)  # fmt: skip
    assert devices["b"].devices == 1


def test_what_no_device_tells_is_not_told_as_if_all_were_well() -> None:
    part = DeviceReading(10, 80, None, None, None, None, None)
    lines = [told("part", part), told("late", part), told("late", reading(20, 0.5)), told("late", part)]
    history_of_both = history([], lines)
    assert history_of_both.devices["part"] == DeviceUse(1, 10.0, 80.0)
    assert history_of_both.devices["late"] == DeviceUse(1, 20.0, 80.0, 0.5, 10.0, 20.0, 0, "", 1)
    page = render(Run("made", jobs={"train": history_of_both}), 10.0)
    (row,) = (line for line in page.splitlines() if "<td>part</td>" in line)
    assert row.count("not told") == 5
    assert "<td>no</td>" in page, "of the other"


@pytest.mark.parametrize("change", [{"busy": "much"}, {"devices": None}, {"to_device": True}, {"kind": "iteration"}])
def test_a_damaged_line_and_one_of_another_kind_are_skipped(change: dict[str, object]) -> None:
    assert history([], [{**told("a", reading(1, 0.5)), **change}]).devices == {}


def test_the_page_and_the_summary_tell_staged_bytes_overlap_and_devices() -> None:
    lines = [
        point(1, stall_s=0.1, staged_bytes=4e9, copy_s=0.0),
        point(2, stall_s=0.1, staged_bytes=4e9, copy_s=0.5),
        point(3, stall_s=0.1, staged_bytes=4e9, copy_s=0.5),
        told("gpu-<1>", reading(70, 0.9, ("too hot (driver)",))),
    ]
    run = Run("made", jobs={"train": history([], lines)})
    page = render(run, 10.0)
    assert "Rank 0 copied 12 GB, 80 % of that time beside training." in page
    assert "gpu-&lt;1&gt;" in page
    assert "too hot (driver)" in page
    job = summary(run, 10.0)["jobs"][0]
    assert job["staged"] == {"saves": 3, "bytes": 12e9, "overlap": pytest.approx(0.8)}
    assert job["devices"]["gpu-<1>"]["used_bytes"] == 70


def test_a_save_that_kept_nothing_waiting_counts_as_one() -> None:
    run = Run("made", jobs={"train": history([], [point(1, staged_bytes=4e9), point(2, staged_bytes=4e9, copy_s=0.5)])})
    assert summary(run, 10.0)["jobs"][0]["staged"] == {"saves": 2, "bytes": 8e9, "overlap": 1.0}


def test_without_devices_and_saves_nothing_is_said_of_them() -> None:
    run = Run("made", jobs={"train": history([], [point(1), point(2)])})
    assert "<h2>Devices</h2>" not in render(run, 10.0)
    job = summary(run, 10.0)["jobs"][0]
    assert job["staged"] == {"saves": 0, "bytes": 0, "overlap": None}
    assert job["devices"] == {}
