"""A real Horovod under its own elastic launcher: trainers come and go, and the losses are those of a calm training.

Its last release, 0.28.1 (2023), is built here for torch 1.12, which has wheels for Python 3.10 and older: newer torch
needs C++17, which Horovod's build does not ask for.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.shell import follow, prepare
from tests.frameworks.environments import Build, environment
from tests.frameworks.horovod_losses import SCRIPT, losses_in
from tests.harness import ROOT, TrainStep, wait_until
from tests.job_roles import evict, flags, log_of, nodes_requested, rounds_broken, wait_for_line
from tests.trained import Start

ITERATIONS = 250
KEEP = [sys.executable, "-m", "everstep.keep_running"]
NEEDS = (
    "torch==1.12.1",
    "numpy<2",
    "setuptools<70",
    "wheel",
    "cmake<3.28",
    "cloudpickle",
    "psutil",
    "pyyaml",
    "packaging",
)
BUILD = Build(
    "horovod==0.28.1",
    {
        "HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITHOUT_TENSORFLOW": "1", "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_MPI": "1", "HOROVOD_WITH_GLOO": "1", "CXXFLAGS": "-include cstdint", "MAKEFLAGS": "-j2",
    },
)  # fmt: skip
LAUNCH = """
export PATH=$1:$PATH HOROVOD_GLOO_TIMEOUT_SECONDS=300
exec horovodrun -np 3 --min-np 1 --max-np 3 --host-discovery-script $EVERSTEP_DISCOVERY_SCRIPT \\
    --network-interfaces lo python -u "$2" "$3" "$4"
"""


def python_3_10() -> str:
    """An interpreter of that version; skips the test without one."""
    candidates = [
        shutil.which("python3.10") or "",
        *map(str, Path.home().glob(".pyenv/versions/3.10.*/bin/python3.10")),
    ]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip("torch 1.12 has no wheels for this Python, and there is no Python 3.10 here")


@pytest.fixture(scope="session")
def python() -> Path:
    """One that has Horovod."""
    return environment("horovod", *NEEDS, python=python_3_10(), build=BUILD)


def train(trained: Start, python: Path, name: str, seconds: float) -> TrainStep:
    trainer = {"replicas": 3, "minReplicas": 1, "completePolicy": "None"}
    spec = {"frameworkType": "horovod", "replicaSpecs": {"launcher": {"replicas": 1}, "trainer": trainer}}
    launch = ["sh", "-c", LAUNCH, "launch", str(python.parent), str(SCRIPT), str(ITERATIONS), str(seconds)]
    commands = {"launcher": [*KEEP, *launch], "trainer": [*KEEP, "sleep", "infinity"]}
    return trained(name, flags=flags(spec, commands))


def losses(step: TrainStep) -> dict[int, tuple[int, float]]:
    """The ranks and the loss of each iteration, so far."""
    return losses_in(log_of(step, "launcher-0-0"))


def horovodruns(step: TrainStep) -> list[int]:
    """The process ids of the launcher's command."""
    return [process.pid for line, process in step.commands("--host-discovery-script") if "-np" in line]


def scale(step: TrainStep, nodes: int) -> None:
    """`everstep scale`, as a user calls it."""
    command = [sys.executable, "-m", "everstep", "scale", step.folder.name, "--role", "trainer", "--nodes", str(nodes)]
    subprocess.run([*command, "--runs", str(step.folder.parent)], cwd=ROOT, check=True, capture_output=True)


def test_trainers_come_and_go_under_one_launcher_and_the_losses_stay(trained: Start, python: Path) -> None:
    calm = train(trained, python, "calm", 0.0)
    assert calm.finish() == 0, calm.last_words()
    step = train(trained, python, "run", 0.1)
    wait_for_line(step, "launcher-0-0", "iteration 10 ranks 3")
    (launcher,) = horovodruns(step)
    scale(step, 2)
    wait_for_line(step, "launcher-0-0", " ranks 2 ")
    before = len(losses(step))
    scale(step, 3)
    wait_until(lambda: [ranks for ranks, _ in list(losses(step).values())[before:]].count(3) or step.over(), "3 ranks")
    assert horovodruns(step) == [launcher], "it was never started again"
    evict(step, "trainer-0-0")
    assert step.finish() == 0, step.last_words()
    assert rounds_broken(step) == 3
    expected, losses_after_loss = losses(calm), losses(step)
    assert sorted(losses_after_loss) == list(range(1, ITERATIONS + 1))
    assert {ranks for ranks, _ in losses_after_loss.values()} == {2, 3}
    assert [loss for _, loss in losses_after_loss.values()] == pytest.approx(
        [loss for _, loss in expected.values()], rel=1e-3
    )
    assert "trainer-0-1" in nodes_requested(step)
    assert "launcher-0-1" not in nodes_requested(step)


def test_the_job_of_the_page_runs_as_it_stands(python: Path, tmp_path: Path) -> None:
    commands = prepare(tmp_path) / "bin"
    # The image has Everstep and Horovod for one Python, and a server of ssh, which one machine does not need.
    stand_ins = {
        "python": f'case "$2" in everstep.*) exec {sys.executable} "$@";; *) exec {python} "$@";; esac',
        "horovodrun": f'exec {python.with_name("horovodrun")} "$@"',
        "sshd": "exec sleep infinity",
    }
    for name, line in stand_ins.items():
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    told = follow(ROOT / "docs" / "how-to" / "from-horovod.md", tmp_path)
    assert told.count("done after 20 iterations on 2 ranks") == 2
