"""A slow rank in real processes: named by `everstep top`."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.launchers import EVERSTEP, Launcher, until

SCRIPT = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
for iteration in range(100_000):
    model(torch.randn(4, 8)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.15 if dist.get_rank() == 1 else 0.05)
    if iteration == 5:
        open("trains", "w").close()
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    pytest.importorskip("torch")
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


@pytest.mark.long
def test_the_rank_that_takes_three_times_as_long_is_named(launcher: Launcher) -> None:
    (launcher.folder / "train.py").write_text(SCRIPT)
    job = f"slow-{launcher.tmp.name}"
    flags = ("--standalone", "--nproc-per-node=3", "--store", "store", f"--rdzv-id={job}")
    launcher.start(EVERSTEP, *flags, "train.py")
    until(lambda: (launcher.folder / "trains").exists(), lambda: launcher.text("node", "err"))
    command = [sys.executable, "-m", "everstep.cli.main", "top", job, "--times", "1", "--every", "8"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=launcher.environment({}))
    assert re.search(r"rank 1 is slow: 0\.\d+ s of its own per iteration", told.stdout), told.stdout
