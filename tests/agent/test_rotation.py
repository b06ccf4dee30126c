"""Logs of months stay short, and their writers need not know."""

import asyncio
import os
from pathlib import Path

import pytest

from everstep.runtime.agent.logs import ATTEMPTS, LaunchLogs, LogPlan, Streams
from everstep.runtime.agent.output import NodeLog
from everstep.runtime.system import rotate
from everstep.runtime.system.rotate import Rotation
from tests.harness import wait_until

MOST = 1000


def _append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def test_a_long_log_begins_anew_and_its_writer_writes_on(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    file = _append(log)
    for number in range(50):
        os.write(file, f"{number:03d} {'x' * 95}\n".encode())
        rotate.rotate(log, MOST)
    os.close(file)
    log_lines = (log.with_name("node.log.1").read_text() + log.read_text()).splitlines()
    assert [int(line[:3]) for line in log_lines] == list(range(50 - len(log_lines), 50)), "the newest, without a gap"
    assert len(log_lines) >= MOST // 100
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * MOST + 200


def test_on_a_full_disk_the_bound_holds_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    log = tmp_path / "node.log"
    log.write_bytes(b"x" * 2 * MOST)
    monkeypatch.setattr(rotate.shutil, "copyfile", full)
    assert rotate.rotate(log, MOST)
    assert log.stat().st_size == 0


def test_what_is_short_or_not_there_stays(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"x" * MOST)
    assert not rotate.rotate(tmp_path / "short", MOST)
    assert not rotate.rotate(tmp_path / "none", MOST)
    assert [path.name for path in tmp_path.iterdir()] == ["short"]


def test_only_a_file_that_is_appended_to_is_rotated(tmp_path: Path) -> None:
    appended, other = _append(tmp_path / "a"), os.open(tmp_path / "b", os.O_WRONLY | os.O_CREAT)
    read, write = os.pipe()
    assert rotate.log_path_of(appended) == tmp_path / "a"
    assert rotate.log_path_of(other) is None
    assert rotate.log_path_of(write) is None
    for file in (appended, other, read, write):
        os.close(file)


def test_a_nodes_log_is_looked_after_as_long_as_the_node_lives(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    file = _append(log)

    async def live() -> None:
        node = NodeLog(file, tmp_path)
        node._rotation = Rotation(node._rotation.paths, MOST, every_s=0.01)
        node.begin(0, [])
        os.write(file, b"x" * 2 * MOST)
        await asyncio.to_thread(wait_until, lambda: not log.stat().st_size, "the rotation")

    asyncio.run(live())
    os.close(file)
    assert log.with_name("node.log.1").stat().st_size == 2 * MOST


def test_of_a_launchs_rounds_the_newest_keep_their_logs_which_are_appended_to_and_rotated(tmp_path: Path) -> None:
    async def rounds() -> LaunchLogs:
        logs = LaunchLogs(LogPlan(str(tmp_path), redirects=Streams(1), tee=Streams(2)), "worker", tmp_path)
        for attempt in range(ATTEMPTS + 5):
            logs.begin(attempt, [{}])
            output = logs.open(0, 0)
            assert rotate.log_path_of(output.stdout) in logs._rotation.paths
            output.close_descriptors()
            output.close()
        return logs

    logs = asyncio.run(rounds())
    assert logs.folder is not None
    attempts_kept = sorted(int(path.name.removeprefix("attempt_")) for path in logs.folder.iterdir())
    assert attempts_kept == list(range(5, ATTEMPTS + 5))
    kept = set(logs.folder.glob("attempt_*/0/*.log"))
    assert logs._rotation.paths == kept, "what a survivor started in an earlier round may write there"


def rotate_and_append(log: Path, line: bytes) -> None:
    assert rotate.rotate(log, 1)
    with log.open("ab") as file:
        file.write(line)


def test_who_follows_a_log_misses_nothing_when_it_begins_anew(tmp_path: Path) -> None:
    log = tmp_path / "pod.log"
    log.write_bytes(b"one\n")
    assert rotate.read_on(log, None) == (b"", b"one\n", 0)
    with log.open("ab") as file:
        file.write(b"two\n")
    rotate_and_append(log, b"3\n")
    assert rotate.read_on(log, 4) == (b"two\n", b"3\n", 0)
    assert rotate.read_on(log, None) == (b"one\ntwo\n", b"3\n", 0)


def test_who_had_read_all_of_a_log_that_begins_anew_reads_on_from_its_beginning_once(tmp_path: Path) -> None:
    log = tmp_path / "pod.log"
    log.write_bytes(b"one\ntwo\n")
    rotate_and_append(log, b"3\n")
    assert rotate.read_on(log, 8) == (b"", b"3\n", 0)
    assert rotate.read_on(log, 2) == (b"", b"", 2)
