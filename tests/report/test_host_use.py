"""What the report says of the CPU, memory, disk and network of nodes."""

import random

import pytest

from everstep.runtime.master.telemetry import OTHER_LINES, thin_lines
from everstep.runtime.report import Run, history, render
from everstep.runtime.report.summary import summary


def line(node: str, cores: float, memory_bytes: int, time: float = 1.0) -> dict[str, object]:
    return {
        "v": 1, "time": time, "node": node, "kind": "host", "cores": cores, "memory_bytes": memory_bytes,
        "disk_bytes_per_s": memory_bytes, "network_bytes_per_s": 3 * memory_bytes,
    }  # fmt: skip


def test_a_nodes_mean_of_cores_and_most_memory_are_told_and_damaged_lines_skipped() -> None:
    damaged = [line("a", "many", 1), line("a", True, 1), line("a", 1.0, -1), line("a", 10**400, 1)]  # type: ignore[arg-type]
    run = Run("made", jobs={"train": history([], [line("a", 1.0, 5_000_000), line("a", 3.0, 4_000_000), *damaged])})
    page = render(run, 10.0)
    assert "<h2>CPU, memory, disk and network</h2>" in page
    cells = "".join(f'<td class="num">{cell}</td>' for cell in ("2.00", "5 MB", "4.5 MB/s", "13.5 MB/s"))
    assert f"<td>a</td>{cells}" in page
    assert summary(run, 10.0)["jobs"][0]["hosts"] == {
        "a": {
            "cores": 2.0,
            "memory_bytes": 5e6,
            "disk_bytes_per_s": 4.5e6,
            "network_bytes_per_s": 13.5e6,
            "readings": 2,
        }
    }


def test_without_such_lines_nothing_is_said_and_of_many_nodes_the_largest_are_shown() -> None:
    assert "CPU, memory" not in render(Run("made", jobs={"train": history([], [])}), 10.0)
    lines = [line(f"n-{number}", 1.0, number * 1_000_000) for number in range(1, 61)]
    page = render(Run("made", jobs={"train": history([], lines)}), 10.0)
    assert "<td>n-60</td>" in page
    assert "<td>n-10</td>" not in page
    assert "10 nodes that used less memory are left out." in page


def test_old_lines_thinned_say_the_same_and_crowd_no_other_kind_out() -> None:
    chance = random.Random(0)
    lines: list[dict[str, object]] = [{"kind": "restored", "round": 1, "rank": 0, "time": 1.0}]
    lines += [line(f"n-{number % 7}", chance.random(), chance.randrange(1 << 30)) for number in range(2 * OTHER_LINES)]
    few = thin_lines(lines)  # type: ignore[arg-type]
    assert len(few) == 8
    assert lines[0] in few
    whole, less = history([], lines).hosts, history([], [*few, line("n-0", 0.5, 1)]).hosts  # type: ignore[list-item]
    assert less["n-0"].readings == whole["n-0"].readings + 1
    for name in sorted(whole.keys() - {"n-0"}):
        assert less[name].cores == pytest.approx(whole[name].cores)
        assert less[name].network_bytes_per_s == pytest.approx(whole[name].network_bytes_per_s)
        assert (less[name].memory_bytes, less[name].readings) == (whole[name].memory_bytes, whole[name].readings)
    devices: list[dict[str, object]] = [{"kind": "devices", "node": "a"}] * (2 * OTHER_LINES)
    assert lines[0] in thin_lines([lines[0], *devices])  # type: ignore[list-item]
