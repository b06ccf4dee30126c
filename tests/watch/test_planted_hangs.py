"""Planted hangs in real processes: a plain torchrun script, whose culprit is named before anything is restarted."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.launchers import EVERSTEP, Launcher

SCRIPT = """
import os, signal, sys, threading, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())

def planted():
    open(f"planted-{rank}", "w").close()
    PLANTED

for iteration in range(40):
    if iteration == 12 and rank == 1:
        planted()
    model(torch.randn(4, 8)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
HANGS = {
    "an endless loop": (
        "while True: pass",
        r"rank 1 of 2 never entered all_reduce #\d+; it .*in planted \(train.py:13\)",
    ),
    "never entering a collective": ("threading.Event().wait()", r"rank 1 of 2 never entered .*; it is in planted"),
    "SIGSTOP": ("os.kill(os.getpid(), signal.SIGSTOP)", r"rank 1 of 2 is stopped by a signal \(SIGSTOP\)"),
    "a blocked read": ("os.read(os.pipe()[0], 1)", r"rank 1 of 2 never entered .* blocked in read of a pipe"),
    "a full pipe": (
        "_, end = os.pipe(); [os.write(end, bytes(1 << 16)) for _ in range(1000)]",
        r"rank 1 of 2 never entered .* blocked in write of a pipe",
    ),
    "mismatched order": (
        "dist.broadcast(torch.ones(8), 0)",
        r"rank [01] of 2 waits in (broadcast|all_reduce) #\d+ .*the others in (all_reduce|broadcast)",
    ),
    "a dead data loader worker": (
        "import multiprocessing; multiprocessing.get_context('fork').Pool(1).apply(os._exit, (1,))",
        r"rank 1 of 2 never entered .*; it is in planted",
    ),
    "a lock in a user's thread": (
        "lock = threading.Lock(); take = lambda: (lock.acquire(), time.sleep(999)); "
        "threading.Thread(target=take, daemon=True).start(); time.sleep(0.2); lock.acquire()",
        r"rank 1 of 2 never entered .*; it is in planted",
    ),
}


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    pytest.importorskip("torch")
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] if case != "a blocked read" else []) for case in HANGS]
)
def test_the_rank_that_hangs_is_named_before_the_job_fails(launcher: Launcher, case: str) -> None:
    planted, named = HANGS[case]
    (launcher.folder / "train.py").write_text(SCRIPT.replace("PLANTED", planted))
    flags = ("--standalone", "--nproc-per-node=2", "--hang-timeout=4")
    ended = launcher.wait_for_end(launcher.start(EVERSTEP, *flags, "train.py"))
    assert (launcher.folder / "planted-1").exists()
    assert ended.code == 1, ended.err
    failed = next(line for line in ended.err.splitlines() if "the job failed" in line)
    assert re.search(named, failed), ended.err


QUIET = {
    "an evaluation that is only long": "model.eval(); time.sleep(9); dist.barrier(); model.train()",
    "a save that is only long": "torch.save({}, SlowFile()); dist.barrier()",
    "an export after the training": "0; iteration == 12 and spin(9)",
}
PARTS = """
class SlowFile:
    def write(self, data):
        if not hasattr(self, "slept"):
            self.slept = time.sleep(9)
        return len(data)
    def flush(self): pass

def spin(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until: pass
"""


@pytest.mark.long
@pytest.mark.parametrize("case", QUIET)
def test_what_only_takes_long_is_no_hang(launcher: Launcher, case: str) -> None:
    script = SCRIPT.replace("PLANTED", QUIET[case]).replace("iteration == 12 and rank == 1", "iteration == 12")
    (launcher.folder / "train.py").write_text(script.replace("def planted():", f"{PARTS}\ndef planted():"))
    flags = ("--standalone", "--nproc-per-node=2", "--hang-timeout=4")
    ended = launcher.wait_for_end(launcher.start(EVERSTEP, *flags, "train.py"))
    assert (launcher.folder / "planted-1").exists()
    assert ended.code == 0, ended.err
    assert "stand still" not in ended.err
