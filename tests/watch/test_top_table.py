"""What `everstep top` shows of two readings."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from everstep.cli import top_table
from everstep.cli.main import main
from everstep.cli.top_table import Reading, last_event, table, window
from everstep.errors import BadInput
from everstep.runtime.job.reasons import JobResult
from everstep.runtime.job.records import JobEnded
from everstep.runtime.journal import journal
from everstep.runtime.protocol.worker_link import LOCAL_RANK_VARIABLE
from everstep.runtime.store import open_store
from everstep.runtime.system.gpu_readings import DeviceReading
from everstep.runtime.watch.board_fields import Board
from everstep.runtime.watch.find_workers import LocalWorker


def reading(at: float, boards: list[Board], *devices: DeviceReading) -> Reading:
    """What is read of these ranks; each uses as much CPU as there is time."""
    workers = [LocalWorker(f"worker-{board.rank}", Path(f"board-{board.rank}"), board) for board in boards]
    pids = [board.pid for board in boards]
    return Reading(at, workers, dict.fromkeys(pids, at), dict(zip(pids, devices, strict=False)))


def test_tokens_stalls_and_devices_are_shown_per_second_and_rank() -> None:
    boards = [Board(pid, rank, 4, 0, 2, "demo", iteration=10, samples=0) for rank, pid in enumerate((os.getpid(), 1))]
    later = [board._replace(iteration=30, samples=50, staging_s=1.0, earlier=100) for board in boards]
    later[0] = later[0]._replace(tokens=123_450.0, phase="evaluation")
    device = DeviceReading(31 << 30, 80 << 30, 0.87, 0.0, 0.0, 0, ("too hot (driver)",))
    lines = table(window(reading(0.0, boards), reading(10.0, later, device)), " here").splitlines()
    assert lines[0] == "demo: iteration 130, 2.00 iterations/s, 12 345 tokens/s, 2 of 4 ranks here, 2 nodes here"
    head, first, second = (line.split() for line in lines[1:])
    assert dict(zip(head[:8], first[:8], strict=True)) == {
        "RANK": "0", "NODE": "worker-0", "PID": str(os.getpid()), "ROUND": "2", "ITERATION": "130", "ITER/S": "2.00",
        "WAITS": "0", "STALL": "%",
    }  # fmt: skip
    assert "10.0 %" in lines[2]
    assert "87 %, 31 of 80 GiB, too hot (driver)  evaluation" in lines[2]
    assert second[-2:] == ["-", "-"]


def test_a_part_of_a_device_shows_its_memory_alone() -> None:
    boards = [Board(7, 0, 1, 0, 1, "demo", iteration=10)]
    part = DeviceReading(31 << 30, 80 << 30, None, None, None, None, None)
    assert "  31 of 80 GiB  " in table(window(reading(0.0, boards), reading(10.0, boards, part))) + "  "


def test_a_new_round_has_no_stall_yet() -> None:
    before = [Board(7, 0, 1, 0, 1, "demo", iteration=10, staging_s=9.0)]
    after = [Board(8, 0, 1, 0, 2, "demo", iteration=1, staging_s=0.5)]
    assert "0.0 %" in table(window(reading(0.0, before), reading(10.0, after)))


def test_a_store_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert last_event(str(tmp_path / "none"), "demo").startswith("last event: unknown: ")


def test_what_a_worker_wrote_moves_no_cursor(tmp_path: Path) -> None:
    claimed, _ = journal.claim(open_store(str(tmp_path)), "demo", "127.0.0.1:1", 1.0)
    end_record = JobEnded(time=2.0, result=JobResult.FAILED, reason="\x1b[2J\x1b]0;mine\x07", error="", exit_code=1)
    claimed.write(claimed.draft([end_record]))
    assert last_event(str(tmp_path), "demo").endswith(r"Failed: \x1b[2J\x1b]0;mine\x07")
    boards = [Board(os.getpid(), 0, 1, 0, 1, "demo", named="\x1b[2J")]
    assert r"\x1b[2J" in table(window(reading(0.0, boards), reading(1.0, boards)))


def test_the_first_window_begins_when_its_boards_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    def find_workers(*_: object) -> list[LocalWorker]:
        """A rank that makes five iterations a second."""
        return [LocalWorker("worker-0", Path("board-0"), Board(os.getpid(), 0, 1, 0, 1, iteration=round(5 * now[0])))]

    monkeypatch.setattr("everstep.cli.top.workers_of", find_workers)
    monkeypatch.setattr("everstep.cli.top.time", SimpleNamespace(sleep=pass_time))
    monkeypatch.setattr("everstep.cli.top_table.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("everstep.cli.top_table.devices_of", lambda: pass_time(1.0))  # As its imports do.
    assert main(["top", "-o", "json", "--times", "2", "--every", "2"]) == 0
    windows = map(msgspec.json.decode, capsys.readouterr().out.splitlines())
    assert [shown["ranks"][0]["pace_hz"] for shown in windows] == [5.0, 5.0]


Look = Callable[[], list[LocalWorker]]


@pytest.fixture
def run_top(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., int]:
    """How many windows `everstep top` shows if these are its looks at the workers, one after the other."""
    looks_left = list[Look]()
    monkeypatch.setattr("everstep.cli.top.workers_of", lambda *_: looks_left.pop(0)())
    monkeypatch.setattr("everstep.cli.top.time.sleep", lambda _: None)
    monkeypatch.setattr("everstep.cli.top_table.devices_of", lambda: None)

    def run(looks: Iterable[Look], *flags: str) -> int:
        looks_left.extend(looks)
        assert main(["top", "-o", "json", "--every", "2", *flags]) == 0
        assert not looks_left
        return len(capsys.readouterr().out.splitlines())

    return run


def present(store: Path) -> Look:
    """A look that finds a rank."""
    board = Board(os.getpid(), 0, 1, 0, 1, "demo", store=str(store))
    return lambda: [LocalWorker("worker-0", Path("board-0"), board)]


def absent() -> list[LocalWorker]:
    """A look that finds none."""
    raise BadInput("demo: no worker")


def test_it_goes_on_after_a_look_between_two_rounds_until_the_job_has_ended(
    tmp_path: Path, run_top: Callable[..., int]
) -> None:
    claimed, _ = journal.claim(open_store(str(tmp_path)), "demo", "127.0.0.1:1", 1.0)

    def end() -> list[LocalWorker]:
        end_record = JobEnded(time=2.0, result=JobResult.SUCCEEDED, reason="all done", error="", exit_code=0)
        claimed.write(claimed.draft([end_record]))
        return absent()

    rank = present(tmp_path)
    assert run_top([rank, rank, rank, absent, rank, rank, absent, end]) == 2


def test_a_job_whose_journal_says_nothing_is_waited_for_no_longer_than_for_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_top: Callable[..., int]
) -> None:
    monkeypatch.setattr("everstep.cli.top.MOST_SILENT_S", 6.0)
    rank = present(tmp_path / "none")
    assert run_top([rank, rank, *[absent] * 4]) == 0


def test_one_reading_waits_for_no_round(tmp_path: Path, run_top: Callable[..., int]) -> None:
    rank = present(tmp_path / "none")
    assert run_top([rank, rank, absent], "--times", "1") == 0


@pytest.mark.parametrize(
    "environment", [{"CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "5", LOCAL_RANK_VARIABLE: "1"}]
)
def test_a_ranks_device_is_that_of_its_local_rank_on_the_node_or_the_one_that_it_sees_alone(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()
    monkeypatch.setattr(top_table.psutil, "Process", lambda _: SimpleNamespace(environ=lambda: environment))
    monkeypatch.setattr(top_table, "read_devices", lambda _, names: asked.extend(names))
    top_table._device(LocalWorker("node", Path("board-1"), Board(7, 1, 2, 1, 1)), object())
    assert asked == ["5"]
