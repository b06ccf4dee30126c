"""A launched job with roles: each node says its own, and the job is what the spec says."""

import os
import random

import pytest

from everstep.runtime.agent.ports import free_port
from everstep.runtime.exit_codes import ExitCode
from tests.launch.launchers import EVERSTEP, Launcher

SCRIPT = """
import os, sys
from tests.launch.collective import Group

group = Group(os.path.dirname(__file__))
group.sum(0)
told = [os.environ[name] for name in ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "WORLD_SIZE")]
sys.stdout.write(" ".join(told) + "\\n")  # One write: several workers share the pipe.
group.close()
"""


def test_nodes_of_two_roles_form_one_job(launcher: Launcher) -> None:
    (launcher.folder / "train.py").write_text(SCRIPT)
    (launcher.folder / "roles.yaml").write_text(
        "replicaSpecs:\n  ps: {replicas: 1}\n  worker: {replicas: 1, slots: 2}\n"
    )
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port(random.Random())}"
    for role in ("worker", "ps"):
        launcher.start(EVERSTEP, "--job-spec=roles.yaml", f"--role={role}", endpoint, "train.py", name=role)
    outcomes = [launcher.wait_for_end(launcher.named[role], role) for role in ("ps", "worker")]
    assert [each.code for each in outcomes] == [0, 0], [each.err for each in outcomes]
    assert outcomes[0].lines() == ["ps 0 1 3"]
    assert outcomes[1].lines() == ["worker 0 2 3", "worker 1 2 3"]


def test_a_wrong_spec_ends_with_exit_code_2_before_anything_is_written(launcher: Launcher) -> None:
    (launcher.folder / "train.py").write_text(SCRIPT)
    (launcher.folder / "roles.yaml").write_text("replicaSpecs:\n  worker:\n    replicas: 2\n    slot: 2\n")
    outcome = launcher.wait_for_end(launcher.start(EVERSTEP, "--job-spec=roles.yaml", "train.py"))
    assert outcome.code == 2
    assert outcome.err.startswith(
        "everstep launch: roles.yaml line 4: replicaSpecs.worker.slot: unknown; did you mean slots?"
    )
    assert outcome.err.count("\n") == 1
    assert not list(launcher.tmp.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it mounts")
def test_a_node_of_horovod_whose_shared_memory_runs_no_program_says_what_to_do(launcher: Launcher) -> None:
    (launcher.folder / "roles.yaml").write_text(
        "frameworkType: horovod\nreplicaSpecs:\n  launcher: {replicas: 1}\n  trainer: {replicas: 1}\n"
    )
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port(random.Random())}"
    as_docker = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o noexec none /dev/shm && exec "$@"', "sh"]
    for role, before in (("trainer", []), ("launcher", as_docker)):
        words = ("--job-spec=roles.yaml", f"--role={role}", endpoint, "--no-python", "sleep", "infinity")
        launcher.start([*before, *EVERSTEP], *words, name=role)
    outcome = launcher.wait_for_end(launcher.named["launcher"], "launcher")
    assert outcome.code == ExitCode.TRY_AGAIN, outcome.err
    (line,) = (line for line in outcome.err.splitlines() if "noexec" in line)
    assert line.startswith("everstep: this node is done: /dev/shm/")
    assert "is mounted noexec, and Horovod runs scripts from there; in docker run give --tmpfs /dev/shm:exec" in line
    assert "Traceback" not in outcome.err
