"""A node tells how much CPU, memory, disk and network it uses."""

import asyncio
import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.agent import host_watch
from everstep.runtime.agent.host_watch import HostWatch, line_of
from everstep.runtime.watch.process_state import FamilyUse, family_use, network_bytes, process_state

TICKS = os.sysconf("SC_CLK_TCK")


def process(proc: Path, pid: int, children: str, seconds: int, own_kib: int, shared_kib: int) -> None:
    (proc / f"{pid}/task/{pid}").mkdir(parents=True)
    (proc / f"{pid}/task/{pid}/children").write_text(children)
    fields = ["S", *"0" * 10, str(seconds * TICKS), "0", "0", "0"]
    (proc / f"{pid}/stat").write_text(f"{pid} (python) {' '.join(fields)}")
    (proc / f"{pid}/status").write_text(f"Name:\tpython\nRssAnon:\t{own_kib} kB\nRssShmem:\t{shared_kib} kB\n")
    (proc / f"{pid}/io").write_text(f"rchar: 7\nwchar: 7\nread_bytes: {pid}\nwrite_bytes: 10\n")


def test_a_process_and_all_that_it_has_started_are_one_and_shared_memory_counts_once(tmp_path: Path) -> None:
    process(tmp_path, 1, "2 ", seconds=1, own_kib=10, shared_kib=300)
    process(tmp_path, 2, "3 9 ", seconds=2, own_kib=20, shared_kib=0)
    process(tmp_path, 3, "", seconds=4, own_kib=40, shared_kib=200)
    process(tmp_path, 4, "", seconds=100, own_kib=1, shared_kib=1000)
    assert family_use(1, tmp_path) == FamilyUse(7.0, (70 + 300) << 10, 11 + 12 + 13)


def test_a_process_whose_name_is_no_text_counts_like_any_other(tmp_path: Path) -> None:
    process(tmp_path, 1, "", seconds=3, own_kib=10, shared_kib=0)
    for name in ("stat", "status"):
        file = tmp_path / "1" / name
        file.write_bytes(file.read_bytes().replace(b"python", b"\xff\xfe"))
    assert family_use(1, tmp_path) == FamilyUse(3.0, 10 << 10, 11)
    state = process_state(1, tmp_path)
    assert state
    assert state.cpu_s == 3.0


def test_a_file_whose_name_is_no_text_can_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everstep.runtime.watch.process_state._FILE_CALLS", {"0": "read"})
    process(tmp_path, 1, "", seconds=3, own_kib=10, shared_kib=0)
    (tmp_path / "1/fd").mkdir()
    os.symlink(b"/data/\xff", os.fsencode(tmp_path / "1/fd/3"))
    (tmp_path / "1/syscall").write_text("0 0x3 0x0 0x0")
    state = process_state(1, tmp_path)
    assert state
    assert state.file == "/data/\ufffd"


def test_this_process_uses_some_memory() -> None:
    use = family_use(os.getpid())
    assert use.cpu_s > 0
    assert 1 << 20 < use.memory_bytes < 1 << 40


def test_a_line_says_the_cores_and_the_disk_since_the_last_one_and_the_memory_now() -> None:
    before, after = FamilyUse(10.0, 5, 1000), FamilyUse(25.0, 7, 2000)
    assert line_of(before, after, 10.0, 40.4) == {
        "kind": "host", "cores": 1.5, "memory_bytes": 7, "disk_bytes_per_s": 100, "network_bytes_per_s": 40
    }  # fmt: skip
    assert line_of(before, FamilyUse(3.0, 7), 10.0, 0.0)["cores"] == 0, "processes that nobody waited for"


def test_the_network_is_that_of_all_interfaces_but_the_loopback(tmp_path: Path) -> None:
    (tmp_path / "self/net").mkdir(parents=True)
    row = "0 " * 7
    (tmp_path / "self/net/dev").write_text(
        f"Inter-| Receive\n face |bytes\n    lo: 9 {row} 9 {row}\n  eth0: 10 {row} 5 {row}\n  eth1:1 {row} 2 {row}\n"
    )
    assert network_bytes(tmp_path) == 18
    assert network_bytes() >= 0


def lines_of(monkeypatch: pytest.MonkeyPatch, count: int) -> list[Any]:
    """The first lines of a watch that does not wait."""
    monkeypatch.setattr(host_watch, "FIRST_S", 0.0)
    monkeypatch.setattr(host_watch, "EVERY_S", 0.0)
    lines, enough = list[Any](), asyncio.Event()

    def add(line: Any) -> None:
        lines.append(line)
        if len(lines) == count:
            enough.set()

    async def run() -> None:
        watching = asyncio.create_task(HostWatch(os.getpid(), add).run())
        async with asyncio.timeout(30):
            await enough.wait()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(run())
    return lines[:count]


def test_line_after_line_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch, 3)
    assert all(line["memory_bytes"] > 1 << 20 and line["cores"] >= 0 for line in lines)


def test_a_reading_that_missed_a_process_is_not_the_one_that_the_next_is_compared_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that is waited for during the reading is neither among the processes nor in its parent's time."""
    readings, clock = iter([1000.0, 1010.0, 20.0, 1030.0, 300.0, 305.0, 315.0, *[315.0] * 100]), count(step=10.0)
    monkeypatch.setattr(host_watch, "family_use", lambda _: FamilyUse(next(readings), 1))
    monkeypatch.setattr(host_watch, "monotonic", lambda: next(clock))
    cores = [line["cores"] for line in lines_of(monkeypatch, 6)]
    assert cores == [1.0, 0.0, 1.0, 0.0, 0.0, 1.0], "what is gone for good is forgotten after one more line"
