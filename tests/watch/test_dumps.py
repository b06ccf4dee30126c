"""Stacks that were dumped before, and those of real processes."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given

from everstep.cli.main import main
from everstep.cli.stacks import read_dumps
from everstep.errors import BadInput
from everstep.runtime.watch import read_stacks as reader
from everstep.runtime.watch.board import STACK_SIGNAL, stack_file
from everstep.runtime.watch.dumps import parse_dump, parse_text
from everstep.runtime.watch.hang_culprit import Standing
from everstep.runtime.watch.looks import Look, render
from everstep.runtime.watch.stacks import Frame, RankStacks, Thread, as_text
from tests.watch.sampled import STACKS

PY_SPY = """Process 30467: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 30467 (idle): "MainThread"
    Condition.wait (threading.py:331)
    stuck (sp.py:2)
Thread 30498 (active+gil): "loader"
    stuck (sp.py:2)
"""
FAULTHANDLER = """Thread 0x00007f7fa62a3f16 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/home/me/sp.py", line 2 in stuck

Current thread 0x00007f7fa62a3f17 (most recent call first):
  File "/home/me/sp.py", line 4 in <module>
"""


@given(STACKS)
def test_a_log_reads_back(stacks: list[RankStacks]) -> None:
    text = "noise\n" + "".join(map(as_text, stacks)) + "and more noise\n"
    assert parse_text(text) == stacks


def test_a_text_of_py_spy_is_read() -> None:
    (stacks,) = parse_dump("rank-3.txt", PY_SPY)
    assert (stacks.rank, [thread.name for thread in stacks.threads]) == (3, ["MainThread", "loader"])
    assert [frame.place for frame in stacks.threads[0].frames] == ["stuck@sp.py:2", "Condition.wait@threading.py:331"]
    assert stacks.threads[1].state == "active+gil"


def test_a_text_of_faulthandler_is_read_with_its_main_thread_last() -> None:
    (stacks,) = parse_dump("rank_0", FAULTHANDLER)
    assert stacks.main is not None
    assert [frame.place for frame in stacks.main.frames] == ["<module>@/home/me/sp.py:4"]
    assert [frame.function for frame in stacks.threads[1].frames] == ["stuck", "wait"]


def test_a_folder_of_dumps_is_one_picture_and_what_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank-0.txt").write_text(PY_SPY)
    (tmp_path / "rank-1.txt").write_text(FAULTHANDLER)
    (tmp_path / "readme").write_text("nothing\n")
    assert sorted(look.stacks.rank for look in read_dumps(tmp_path)) == [0, 1]
    with pytest.raises(BadInput, match="readme: no stacks of Everstep, py-spy or faulthandler"):
        read_dumps(tmp_path / "readme")


def test_stacks_survive_json(tmp_path: Path) -> None:
    (stacks,) = parse_dump("rank-3.txt", PY_SPY)
    (tmp_path / "any.json").write_bytes(msgspec.json.encode([stacks]))
    assert [look.stacks for look in read_dumps(tmp_path)] == [stacks]


def test_what_each_machine_has_said_names_the_rank_that_the_others_wait_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = Standing(0, 2, entered=7, completed=6, collective="all_reduce [3]", counted_ago_s=0.1)
    absent = Standing(1, 2, entered=6, completed=6, place="load (data.py:88)", counted_ago_s=0.1)
    for name, standing in (("a.json", waits), ("b.json", absent)):
        looks = [Look(RankStacks(standing.rank, (Thread("MainThread", (Frame("main", "train.py", 3),)),)), standing)]
        (tmp_path / name).write_text(render(looks, "json", "job"))
    assert main(["stacks", "--path", str(tmp_path / "a.json")]) == 0
    assert capsys.readouterr().out.startswith(
        "the only rank that could be looked at waits in all_reduce #7; rank 1 of 2"
    )
    assert main(["stacks", "--path", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("rank 1 of 2 never entered all_reduce #7; it is in load (data.py:88)")


STUCK = """
import faulthandler, sys, threading
if len(sys.argv) > 1:
    faulthandler.register(int(sys.argv[2]), open(sys.argv[1], "w"), all_threads=True)
def stuck():
    print("ready", flush=True)
    threading.Event().wait()
stuck()
"""


def test_where_ptrace_is_refused_the_process_writes_its_stacks_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = tmp_path / "py-spy"
    refuses.write_text("#!/bin/sh\necho 'Error: Permission Denied' >&2; touch asked; exit 1\n")
    refuses.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    board = tmp_path / "board-0"
    with _process(str(stack_file(board)), str(int(STACK_SIGNAL))) as process:
        monkeypatch.setattr(reader.sys, "executable", str(tmp_path / "python"))
        (stacks,) = asyncio.run(reader.read_stacks({5: process.pid}, boards={5: board}))
        process.kill()
    assert (tmp_path / "asked").exists()
    assert stacks.main is not None
    assert "stuck" in [frame.function for frame in stacks.main.frames]
    assert stacks.failure == "py-spy: Error: Permission Denied; written by the process itself"


def test_a_process_without_a_handler_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _process() as process:
        monkeypatch.setattr(reader.sys, "executable", str(tmp_path / "python"))
        monkeypatch.setenv("PATH", str(tmp_path))
        (stacks,) = asyncio.run(reader.read_stacks({0: process.pid}, boards={0: tmp_path / "board-0"}))
        assert process.poll() is None
        process.kill()
    assert stacks == RankStacks(0, (), process.pid, "", "py-spy is not installed; pip install py-spy")


def test_where_no_process_of_py_spy_can_be_started_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "py-spy").write_text("no program")
    monkeypatch.setattr(reader.sys, "executable", str(tmp_path / "python"))
    (stacks,) = asyncio.run(reader.read_stacks({0: os.getpid()}))
    assert stacks.failure.startswith("py-spy cannot be started: [Errno 13] Permission denied")


def test_of_many_processes_few_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, 0

    async def run(*_: str) -> tuple[int, bytes, bytes]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return 0, b"[]", b""

    monkeypatch.setattr(reader, "_output_of", run)
    monkeypatch.setattr(reader.shutil, "which", lambda _: "py-spy")
    assert len(asyncio.run(reader.read_stacks(dict.fromkeys(range(128), os.getpid())))) == 128
    assert most == 16


@pytest.mark.parametrize(
    ("written_at", "threads", "remark"),
    [
        ((0.5, 0.7, 0.9), ["MainThread", "thread"], "written by the process itself"),
        ((1.7, 1.9, 2.5), [], "it has not written them all within 2 s"),
        ((2.5,), [], ""),
    ],
)
def test_a_process_is_given_time_to_write_its_stacks_and_parts_of_them_do_not_count(
    written_at: Sequence[float], threads: list[str], remark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = FAULTHANDLER.partition("\n\n")
    due, clock = list(zip(written_at, parts, strict=False)), [0.0]
    answer = stack_file(tmp_path / "board-0")
    answer.write_text("")

    async def wait(seconds: float) -> None:
        clock[0] += seconds
        while due and due[0][0] <= clock[0]:
            answer.write_text(answer.read_text() + due.pop(0)[1])

    monkeypatch.setattr(reader, "asyncio", SimpleNamespace(sleep=wait))
    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(reader, "os", SimpleNamespace(kill=lambda pid, signum: None))
    monkeypatch.setattr(reader, "catches", lambda pid, signum: True)
    found, why = asyncio.run(reader._ask_process(7, tmp_path / "board-0"))
    assert ([thread.name for thread in found], why) == (threads, remark)


def _process(*words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", STUCK, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process
