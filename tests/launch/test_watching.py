"""What a launched job sees of its workers: hangs with the stacks of all ranks, memory that ran out."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.runtime.system.oom import own_counter_path
from tests.launch.launchers import EVERSTEP, Launcher, until
from tests.memory_groups import memory_group

HANGS = """
import sys, threading
import torch
import everstep

job = everstep.init()
checkpointer = everstep.Checkpointer({"model": torch.nn.Linear(2, 2)})
for step in range(3):
    everstep.phase(f"step {step}")
    threading.Event().wait(1.0)

def stuck_for_ever():
    threading.Event().wait()

if sys.argv[1] == "all" or job.rank == 1:
    stuck_for_ever()
while True:
    everstep.phase("forward")
    everstep.phase("backward")
    threading.Event().wait(0.2)
"""


def test_a_hang_is_seen_the_stacks_of_all_ranks_are_written_and_the_job_fails(launcher: Launcher) -> None:
    pytest.importorskip("torch")
    (launcher.folder / "train.py").write_text(HANGS)
    flags = ("--standalone", "--nproc-per-node=2", "--hang-timeout=8", "--store", "store", "--rdzv-id=hung")
    outcome = launcher.wait_for_end(launcher.start(EVERSTEP, *flags, "train.py", "all"))
    assert outcome.code == 1, outcome.err
    (log_copy,) = (launcher.folder / "store" / "jobs" / "hung" / "logs").glob("*/stacks-*.txt")
    for text in (outcome.err, log_copy.read_text()):
        assert text.count("stuck_for_ever (/") == 2, text
        assert "--- rank 0, process" in text
        assert "--- rank 1, process" in text
    assert "the job failed: round 1 hung: all ranks stood still for 8 s" in outcome.err
    assert launcher.leftovers() == []


def test_after_a_hang_the_job_is_restarted_where_restarts_are_allowed(launcher: Launcher) -> None:
    pytest.importorskip("torch")
    script = HANGS.replace('sys.argv[1] == "all" or job.rank == 1', "job.round == 1").replace(
        "while True:", "for _ in 'ab':"
    )
    (launcher.folder / "train.py").write_text(script)
    flags = ("--standalone", "--nproc-per-node=2", "--hang-timeout=8", "--max-restarts=1")
    outcome = launcher.wait_for_end(launcher.start(EVERSTEP, *flags, "train.py"))
    assert outcome.err.count("stuck_for_ever (/") == 2, outcome.err
    assert outcome.code == 0, outcome.err


def test_while_one_rank_moves_nobody_hangs(launcher: Launcher) -> None:
    pytest.importorskip("torch")
    script = HANGS.replace("while True:", "for _ in range(100):").replace("threading.Event().wait()", "sys.exit(3)", 1)
    script = script.replace("def stuck_for_ever():", "def stuck_for_ever():\n    threading.Event().wait(12)")
    (launcher.folder / "train.py").write_text(script)
    flags = ("--standalone", "--nproc-per-node=2", "--hang-timeout=4")
    outcome = launcher.wait_for_end(launcher.start(EVERSTEP, *flags, "train.py", "one"))
    assert "stood still" not in outcome.err
    assert "ended with exit code 3" in outcome.err


def test_a_script_that_does_not_know_everstep_is_told_once_what_it_misses(launcher: Launcher) -> None:
    (launcher.folder / "wait.sh").write_text("while ! test -e stop; do sleep 0.1; done\n")
    process = launcher.start(EVERSTEP, "--standalone", "--no-python", "sh", "wait.sh")
    until(lambda: "has not called everstep" in launcher.text("node", "err"), lambda: launcher.text("node", "err"))
    (launcher.folder / "stop").touch()
    outcome = launcher.wait_for_end(process)
    assert outcome.code == 0
    assert outcome.err.count("has not called everstep") == 1


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of our own that may have 500 MiB."""
    with memory_group(500 << 20) as new_group:
        yield new_group


def test_a_worker_that_the_kernel_kills_for_want_of_memory_is_told_apart_from_other_kills(
    launcher: Launcher, group: Path
) -> None:
    (launcher.folder / "train.py").write_text("held = [bytearray(1 << 20) for _ in range(4000)]\n")
    inside = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    command = ("sh", "-c", inside, "sh", *EVERSTEP)
    outcome = launcher.wait_for_end(launcher.start(command, "--standalone", "--max-restarts=1", "train.py"))
    assert outcome.err.count("ended with exit code -9, out of memory") == 2, outcome.err
    assert "out of memory; worker nodes were restarted 1 times" in outcome.err
    assert outcome.code == 1


def test_a_worker_that_somebody_kills_did_not_run_out_of_memory(launcher: Launcher) -> None:
    (launcher.folder / "train.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n")
    outcome = launcher.wait_for_end(launcher.start(EVERSTEP, "--standalone", "train.py"))
    assert "ended with exit code -9 at iteration" in outcome.err
    assert "out of memory" not in outcome.err


def test_this_machines_own_memory_group_can_be_read() -> None:
    if own_counter_path() is None:
        pytest.skip("no memory group can be read here")
    count = subprocess.run(["grep", "^oom_kill ", str(own_counter_path())], capture_output=True, check=True)
    assert count.stdout.split()[1].isdigit()
    assert os.access(str(own_counter_path()), os.R_OK)
