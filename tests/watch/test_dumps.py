"""Stacks that were dumped before, and those of real processes."""

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given

from everstep.cli.stacks import read_dumps
from everstep.errors import BadInput
from everstep.runtime.watch import read_stacks as reader
from everstep.runtime.watch.board import STACK_SIGNAL, stack_file
from everstep.runtime.watch.dumps import parse_dump, parse_text
from everstep.runtime.watch.stacks import RankStacks, as_text
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


def _process(*words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", STUCK, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process
