"""Operators and kernels of a few iterations, as torch's profiler sees them, when somebody asks."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everstep.cli import top
from everstep.runtime.watch.board_fields import Board
from everstep.runtime.watch.find_workers import LocalWorker
from everstep.runtime.watch.kernel_profile import ITERATIONS, LOOK_S, KernelProfile, request_file, trace_file
from tests.launch.launchers import EVERSTEP, Launcher, until

SCRIPT = """
import time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while not Path("over").exists():
    model(torch.randn(4, 8)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
    Path("trains").touch()
"""


def test_each_rank_of_a_plain_script_writes_a_trace_of_its_next_iterations_and_trains_on(launcher: Launcher) -> None:
    (launcher.folder / "train.py").write_text(SCRIPT)
    job = f"profiled-{launcher.tmp.name}"
    process = launcher.start(EVERSTEP, "--standalone", "--store=store", f"--rdzv-id={job}", "train.py")
    until(lambda: (launcher.folder / "trains").exists(), lambda: launcher.text("node", "err"))
    command = [sys.executable, "-m", "everstep.cli.main", "top", job, "--profile", "traces"]
    asked = subprocess.run(
        command, cwd=launcher.folder, capture_output=True, text=True, check=False, env=launcher.environment({})
    )
    assert asked.returncode == 0, asked.stderr
    events = json.loads((launcher.folder / "traces" / "rank-0.json").read_text())["traceEvents"]
    names = [event["name"] for event in events]
    assert sum(name.startswith("Optimizer.step") for name in names) == ITERATIONS
    assert "aten::addmm" in names
    (launcher.folder / "over").touch()
    assert launcher.wait_for_end(process).code == 0


def test_a_script_that_profiles_itself_goes_on_and_the_answer_says_why_there_is_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> Any:
        raise RuntimeError("Profiler is already enabled on this thread")

    profiler = SimpleNamespace(profile=refuse, ProfilerActivity=SimpleNamespace(CPU=0, CUDA=1))
    torch = SimpleNamespace(profiler=profiler, cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)
    board = tmp_path / "board-0"
    profile = KernelProfile(board)
    profile.after_step(0.0)
    assert not trace_file(board).exists(), "nobody has asked"
    request_file(board).touch()
    profile.after_step(LOOK_S)
    assert trace_file(board).read_text() == "torch's profiler: Profiler is already enabled on this thread"
    assert not request_file(board).exists()


def test_a_link_that_another_user_has_put_in_the_place_of_a_request_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "PROFILE_S", 0.0)
    worker = LocalWorker("node", tmp_path / "board-0", Board(7, 0, 1, 0, 1))
    request_file(worker.path).symlink_to(tmp_path / "elsewhere")
    assert top._write_profiles([worker], tmp_path / "traces") == 1, "nobody has answered"
    assert not (tmp_path / "elsewhere").exists()
