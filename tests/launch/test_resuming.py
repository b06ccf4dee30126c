"""A launch with a store is taken up again where it was, whatever ended it."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.launch.launchers import EVERSTEP, Launcher, LaunchOutcome, until

pytest.importorskip("torch")

SCRIPT = """
import os, threading
import torch
import everstep

folder = os.path.dirname(__file__)
job = everstep.init()
state = {"model": torch.nn.Linear(2, 2), "done": 0}
checkpointer = everstep.Checkpointer(state)
first = checkpointer.load(state)
with open(f"{folder}/lines", "a", buffering=1) as lines:
    lines.write(f"{os.getppid()} {first}\\n")
    iteration = first
    while not os.path.exists(f"{folder}/stop"):
        iteration += 1
        state["done"] = iteration
        everstep.phase("work")
        checkpointer.save(iteration, state)
        lines.write(f"{os.getppid()} {iteration}\\n")
        threading.Event().wait(0.02)
checkpointer.finish(state)
"""


def lines(folder: Path) -> list[tuple[int, int]]:
    """(fork server, iteration), as the worker went."""
    path = folder / "lines"
    text = path.read_text() if path.exists() else ""
    return [(int(line.split()[0]), int(line.split()[1])) for line in text.splitlines() if len(line.split()) == 2]


def start(launcher: Launcher, name: str, *flags: str) -> int:
    """One launch of the job `mine`."""
    (launcher.folder / "train.py").write_text(SCRIPT)
    usual = ("--standalone", "--store=store", "--rdzv-id=mine", *flags)
    return launcher.start(EVERSTEP, *usual, "train.py", name=name).pid


def until_iteration(launcher: Launcher, name: str, iteration: int) -> None:
    """Wait until the worker has done it."""
    until(
        lambda: lines(launcher.folder)[-1:] and lines(launcher.folder)[-1][1] >= iteration,
        lambda: launcher.text(name, "err"),
    )


def finish(launcher: Launcher, name: str) -> LaunchOutcome:
    """Let the script end."""
    (launcher.folder / "stop").touch()
    return launcher.wait_for_end(launcher.named[name], name)


def began(launcher: Launcher) -> list[int]:
    """The iteration that each worker's life began with."""
    iteration_by_server: dict[int, int] = {}
    for server, iteration in lines(launcher.folder):
        iteration_by_server.setdefault(server, iteration)
    return list(iteration_by_server.values())


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_launch_that_is_told_to_end_saves_its_newest_state_first(launcher: Launcher, signum: signal.Signals) -> None:
    process = start(launcher, "a", "--persist-interval=1000000")
    until_iteration(launcher, "a", 30)
    reached = lines(launcher.folder)[-1][1]
    os.kill(process, signum)
    assert launcher.wait_for_end(launcher.named["a"], "a").code == 128 + signum
    start(launcher, "b", "--persist-interval=1000000")
    until(lambda: len(began(launcher)) == 2, lambda: launcher.text("b", "err"))
    assert began(launcher)[1] >= reached
    outcome = finish(launcher, "b")
    assert outcome.code == 0, outcome.err
    assert launcher.leftovers() == []


def test_a_killed_launch_goes_on_from_the_newest_checkpoint_in_the_store(launcher: Launcher) -> None:
    process = start(launcher, "a", "--persist-interval=10")
    checkpoints = launcher.folder / "store" / "jobs" / "mine" / "checkpoints"
    until(lambda: len(list(checkpoints.glob("*/manifest.json"))) >= 2, lambda: launcher.text("a", "err"))
    committed = max(int(path.parent.name.split("-")[1]) for path in checkpoints.glob("*/manifest.json"))
    os.kill(process, signal.SIGKILL)
    until(lambda: not launcher.processes(), lambda: str(launcher.processes()))
    start(launcher, "b", "--persist-interval=10", "--rdzv-conf=keep_alive_interval=2")
    until(lambda: len(began(launcher)) == 2, lambda: launcher.text("b", "err"))
    assert began(launcher)[1] >= committed
    outcome = finish(launcher, "b")
    assert outcome.code == 0, outcome.err
    again = start(launcher, "c")
    assert again
    assert launcher.wait_for_end(launcher.named["c"], "c").code == 0, "a job that is done stays done"
    assert len(began(launcher)) == 2
    newest = max(checkpoints.glob("*/manifest.json"))
    assert json.loads(newest.read_text())["iteration"] >= committed


def test_a_launch_whose_store_does_not_answer_ends_all_the_same(launcher: Launcher) -> None:
    process = start(launcher, "a")
    until_iteration(launcher, "a", 5)
    journal = launcher.folder / "store" / "jobs" / "mine" / "journal"
    os.mkfifo(journal / "999999")  # Who reads the newest segment, to find the master, waits for ever.
    (master,) = [pid for pid, command in launcher.processes() if "everstep.runtime.launch.master_main" in command]
    os.kill(master, signal.SIGKILL)
    until(lambda: "another one takes over" in launcher.text("a", "err"), lambda: launcher.text("a", "err"))

    def has_ended() -> bool:
        os.kill(process, signal.SIGTERM)  # The first one gives time to save; each later one ends it at once.
        return launcher.named["a"].poll() is not None

    until(has_ended, lambda: launcher.text("a", "err"))
    # A signal that comes when nobody listens any more ends it, too.
    assert launcher.named["a"].returncode in (128 + signal.SIGTERM, -signal.SIGTERM)
    until(lambda: not launcher.processes(), lambda: str(launcher.processes()))


def test_with_virtual_local_ranks_one_worker_stages_the_state_that_all_have(launcher: Launcher) -> None:
    (launcher.folder / "train.py").write_text("""
import sys, torch, everstep

job = everstep.init()
state = {"model": torch.nn.Linear(2, 2)}
checkpointer = everstep.Checkpointer(state)
checkpointer.load(state)
sys.stdout.write(f"{job.rank} {job.local_rank} {checkpointer.segment.capacity > 0}\\n")
checkpointer.save(1, state)
checkpointer.finish(state)
""")
    flags = ("--standalone", "--nproc-per-node=2", "--virtual-local-rank", "train.py")
    outcome = launcher.wait_for_end(launcher.start(EVERSTEP, *flags, CUDA_VISIBLE_DEVICES="-1,-1"))
    assert outcome.code == 0, outcome.err
    assert outcome.lines() == ["0 0 True", "1 0 False"], outcome.err
