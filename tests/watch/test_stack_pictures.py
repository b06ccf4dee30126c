"""Stacks and a timeline of a training that hangs, as files, by the commands that a user types."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from everstep.cli.main import main
from everstep.runtime.watch.looks import Look, render
from everstep.runtime.watch.stacks import RankStacks
from tests.launch.launchers import EVERSTEP, Launcher, until

SCRIPT = """
import threading
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())

def stuck():
    open("hangs", "w").close()
    threading.Event().wait()

for iteration in range(6):
    if iteration == 5 and dist.get_rank() == 1:
        stuck()
    model(torch.randn(4, 8)).pow(2).sum().backward()
    optimizer.step()
"""


def texts(path: str) -> list[str]:
    """The boxes of a picture."""
    return [element.text or "" for element in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}title")]


@pytest.mark.long
def test_both_pictures_and_the_timeline_show_where_each_rank_is(launcher: Launcher) -> None:
    (launcher.folder / "train.py").write_text(SCRIPT)
    job, to = f"stuck-{launcher.tmp.name}", launcher.folder / "pictures"
    launcher.start(EVERSTEP, "--standalone", "--nproc-per-node=2", "--store=store", f"--rdzv-id={job}", "train.py")
    until(lambda: (launcher.folder / "hangs").exists(), lambda: launcher.text("node", "err"))

    def everstep(*words: str) -> str:
        command = [sys.executable, "-m", "everstep.cli.main", *words]
        environment = launcher.environment({})
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    told = everstep("stacks", job, "--native", "--to", str(to))
    assert "rank 1 of 2 never entered all_reduce" in told.splitlines()[0]
    assert sorted(path.name for path in to.iterdir()) == [
        "native_stack.svg", "py_stack.svg", "speedscope.json", "stacks.json", "stacks.txt"
    ]  # fmt: skip
    python, native = texts(str(to / "py_stack.svg")), texts(str(to / "native_stack.svg"))
    assert any("stuck@" in title and title.endswith("@1|0") for title in python), python
    assert not any(".so" in title for title in python), python
    is_late = "rank 0: py-spy did not end within" in told  # Beside load: it reads all symbols of torch.
    assert is_late or any("libtorch" in title and title.endswith("@0|1") for title in native), native
    assert any("stuck@" in title for title in native), native
    profiles = json.loads((to / "speedscope.json").read_text())["profiles"]
    assert [profile["name"] for profile in profiles] == ["rank 0", "rank 1"]
    everstep("top", job, "--timeline", str(to / "timeline.json"))
    events = json.loads((to / "timeline.json").read_text())["traceEvents"]
    shown = {(event["tid"], event["name"]) for event in events if event["ph"] == "X"}
    assert shown == {(rank, f"iteration {number}") for rank in (0, 1) for number in range(2, 6)}


def test_a_file_in_the_place_of_the_pictures_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps, taken = tmp_path / "stacks.json", tmp_path / "taken"
    dumps.write_text(render([Look(RankStacks(0))], "json", "demo"))
    taken.touch()
    assert main(["stacks", "--path", str(dumps), "--to", str(taken)]) == 2
    assert capsys.readouterr().err == f"everstep stacks: --to {taken}: File exists\n"
