"""What a person sees of a training on the cluster from outside: its stacks by one command, its run in `everstep ui`."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from everstep.cli.ui.sources import ClusterRuns
from tests.cluster.layout import ADMIN, NAMESPACE, NODES
from tests.cluster.room import SLOT, room
from tests.cluster.trainings import Training
from tests.harness import ROOT
from tests.ui.page_server import first_event, served_from

SPEC = json.dumps({"replicaSpecs": {"worker": {"replicas": NODES, "minReplicas": NODES, "resources": {SLOT: 1}}}})


@pytest.fixture(scope="module")
def job(training: Training) -> Iterator[Training]:
    """It trains on both machines until it is told to stop."""
    for node in range(1, NODES + 1):
        room(training.cluster, node, 1)
    training.submit_paced("", SPEC)
    training.wait_iteration(3)
    yield training
    training.stop()
    training.finish()


def ask(job: Training, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`everstep stacks` or `top` of a user whose kube context is the cluster."""
    variables = {**os.environ, **job.cluster.store, "KUBECONFIG": str(ADMIN)}
    command = [sys.executable, "-m", "everstep", verb, job.name, "--namespace", NAMESPACE, *words]
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)


def test_one_command_shows_the_stacks_of_all_pods(job: Training, tmp_path: Path) -> None:
    completed = ask(job, "stacks", "--to", str(tmp_path))
    assert completed.returncode == 0, completed.stderr
    assert "paced.py" in completed.stdout
    assert f"@0-{NODES - 1}|" in completed.stdout, "the main threads of all ranks are one tree"
    stacks_by_rank = json.loads((tmp_path / "stacks.json").read_text())
    assert [look["stacks"]["rank"] for look in stacks_by_rank] == list(range(NODES))
    assert len({look["stacks"]["node"] for look in stacks_by_rank}) == NODES
    assert all(look["stacks"]["threads"] for look in stacks_by_rank)
    assert json.loads((tmp_path / "speedscope.json").read_text())["profiles"]
    assert "<svg" in (tmp_path / "py_stack.svg").read_text()


def test_one_command_shows_the_ranks_of_all_pods(job: Training) -> None:
    completed = ask(job, "top", "--times", "2", "--every", "4")
    assert completed.returncode == 0, completed.stderr
    lines = completed.stdout.splitlines()
    assert sum(f"{NODES} of {NODES} ranks, {NODES} nodes" in line for line in lines) == 2, completed.stdout
    assert sum(line.startswith("last event: 20") for line in lines) == 2, completed.stdout


def test_a_run_that_is_not_there_is_refused_in_one_line(job: Training) -> None:
    variables = {**os.environ, "KUBECONFIG": str(ADMIN)}
    command = [sys.executable, "-m", "everstep", "stacks", "nothing", "--namespace", NAMESPACE]
    completed = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert completed.returncode == 2
    assert len(completed.stderr.strip().splitlines()) == 1, completed.stderr


def test_the_page_lists_the_namespaces_runs_and_shows_its_training(
    job: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(ADMIN))
    monkeypatch.delenv("ARGO_SERVER", raising=False)
    for name, value in job.cluster.store.items():
        monkeypatch.setenv(name, value)

    async def ask_page() -> tuple[object, object]:
        async with served_from(ClusterRuns(NAMESPACE)) as address, aiohttp.ClientSession() as session:
            return (
                await first_event(session, f"{address}/api/list", "runs"),
                await first_event(session, f"{address}/api/run?place={NAMESPACE}&name={job.name}", "run"),
            )

    listed, run = asyncio.run(ask_page())
    assert job.name in json.dumps(listed)
    assert "worker-0-0" in json.dumps(run)
    assert "iteration" in json.dumps(run)
