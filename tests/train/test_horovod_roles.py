"""A job of Horovod's shape: its launcher outlives rounds, and reads the hosts of the newest one from the script."""

import sys
from pathlib import Path

import pytest

from tests.harness import TrainStep, wait_until
from tests.job_roles import evict, flags, rounds_broken

LAUNCHER = """
last=
while [ ! -e "$0/stop" ]; do
    now=$($EVERSTEP_DISCOVERY_SCRIPT)
    [ "$now" = "$last" ] || echo "$$ $now" >> "$0/hosts"
    last=$now
    sleep 0.05
done
"""
KEEP = [sys.executable, "-m", "everstep.keep_running"]
SPEC = {
    "frameworkType": "horovod",
    "replicaSpecs": {
        "launcher": {"replicas": 1},
        "trainer": {"replicas": 3, "minReplicas": 1, "completePolicy": "None"},
    },
}


@pytest.mark.long
def test_a_launcher_goes_on_when_a_trainer_is_lost_and_finds_the_others(tmp_path: Path) -> None:
    commands = {"launcher": [*KEEP, "sh", "-c", LAUNCHER, str(tmp_path)], "trainer": [*KEEP, "sleep", "infinity"]}
    step_flags = flags(SPEC, commands, **{"max-relaunches": "0"})
    step = TrainStep(tmp_path / "run", tmp_path / "store", flags=step_flags)
    hosts = tmp_path / "hosts"

    def lines() -> list[str]:
        return hosts.read_text().splitlines() if hosts.exists() else []

    try:
        step.start()
        wait_until(lambda: lines() or step.over(), "the first hosts")
        evict(step, "trainer-1-0")
        wait_until(lambda: len(lines()) > 1 or step.over(), "the hosts that are left")
        (tmp_path / "stop").touch()
        assert step.finish() == 0, step.last_words()
    finally:
        step.kill_all()
    assert rounds_broken(step) == 1
    (first, all_hosts), (second, fewer) = (line.split() for line in lines())
    assert (all_hosts, fewer) == ("127.0.0.1:3", "127.0.0.1:2")
    assert first == second, "the same process"
    assert step.leftovers() == []
