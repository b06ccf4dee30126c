"""The wire between two nodes on networks of their own is cut, or one node is frozen: the job goes on without that one,
and with it again when it is back, at the iteration it was at and with every sample applied once.
"""

import os
import random
import signal

import psutil
import pytest

from everstep.runtime.agent.ports import free_port
from tests.launch import sampled
from tests.launch.launchers import Launcher, until
from tests.launch.networks import INTERFACE, Network
from tests.launch.nodes import Nodes

pytest.importorskip("torch")
PATIENT = "--rdzv-conf=last_call_timeout=2"
"""A node is lost after 30 s of silence."""


def trains(nodes: Nodes, world: int, after: int) -> int:
    """Wait for a round later than `after`; its number."""
    folder = nodes.launcher.folder
    until(lambda: sampled.later_round(folder, world, after), nodes.stderr_text)
    return sampled.later_round(folder, world, after)


def test_a_node_whose_network_is_lost_is_done_without_and_comes_back(launcher: Launcher, network: Network) -> None:
    folder = launcher.folder
    dataset = sampled.make_dataset(folder)
    (folder / "train.py").write_text(sampled.script())
    nodes = Nodes(launcher, free_port(random.Random()), network.address(0), (dataset,))

    for number, name in enumerate("ab"):
        more = {"EVERSTEP_JOB_TOKEN": "of both", "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
        nodes.start(name, PATIENT, nodes="1:2", within=network.enter(number), **more)
    first = trains(nodes, 2, 0)
    begun = sampled.worlds(folder)  # On a busy machine the first one did not wait for the second.
    assert network.reaches(nodes.port)

    network.wire("down")
    assert not network.reaches(nodes.port), "the fault fired"
    alone = trains(nodes, 1, first)
    assert "NodeSuspected" in nodes.kinds(), "it was not waited for until it counted as lost"
    until(lambda: "does not answer" in launcher.text("b", "err"), nodes.stderr_text)

    network.wire("up")
    trains(nodes, 2, alone)
    assert [outcome.code for outcome in nodes.finish("a", "b")] == [0, 0], nodes.stderr_text()
    nodes.wait_until_gone()
    sampled.assert_applied_once(folder, dataset, [*begun, 1, 2])


@pytest.mark.long
def test_the_machine_of_the_master_loses_its_power_and_another_node_makes_the_next_one(
    launcher: Launcher, network: Network
) -> None:
    folder = launcher.folder
    dataset = sampled.make_dataset(folder)
    (folder / "train.py").write_text(sampled.script())
    nodes = Nodes(launcher, free_port(random.Random()), network.address(0), (dataset,))

    def start(name: str, number: int) -> psutil.Process:
        more = {"EVERSTEP_JOB_TOKEN": "of all", "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
        shared = ("--store", "store", "--rdzv-id=mine", PATIENT)
        return psutil.Process(nodes.start(name, *shared, nodes="1:2", within=network.enter(number), **more))

    host = start("a", 0)
    until(nodes.masters, nodes.stderr_text)
    start("b", 1)
    first = trains(nodes, 2, 0)
    begun = sampled.worlds(folder)
    lost = [host, *host.children(recursive=True), psutil.Process(nodes.master())]
    network.wire("down")  # Nobody hears how they end.
    for process in lost:
        process.kill()
    psutil.wait_procs(lost)
    alone = trains(nodes, 1, first)
    assert not any(process.is_running() for process in lost), "the fault fired"
    assert "this node starts the next one" in launcher.text("b", "err")
    assert "NodeSuspected" in nodes.kinds(), "it was not waited for until it counted as lost"

    network.wire("up")
    start("c", 0)
    trains(nodes, 2, alone)
    assert [outcome.code for outcome in nodes.finish("b", "c")] == [0, 0], nodes.stderr_text()
    nodes.wait_until_gone()
    sampled.assert_applied_once(folder, dataset, [*begun, 1, 2])


@pytest.mark.long
def test_a_frozen_node_is_done_without_comes_back_and_is_not_given_up(launcher: Launcher) -> None:
    folder = launcher.folder
    dataset = sampled.make_dataset(folder)
    (folder / "train.py").write_text(sampled.script())
    nodes = Nodes(launcher, free_port(random.Random()), arguments=(dataset,))

    nodes.start("a", PATIENT, OMP_NUM_THREADS="1")
    until(nodes.masters, nodes.stderr_text)  # The one that stays hosts the master.
    frozen = psutil.Process(nodes.start("b", PATIENT, OMP_NUM_THREADS="1"))
    first = trains(nodes, 2, 0)
    begun = sampled.worlds(folder)
    processes = [frozen, *frozen.children(recursive=True)]
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    alone = trains(nodes, 1, first)
    assert frozen.status() == psutil.STATUS_STOPPED, "the fault fired"
    for process in processes:
        os.kill(process.pid, signal.SIGCONT)
    trains(nodes, 2, alone)
    kinds = nodes.kinds()
    assert kinds.count("NodeSuspected") == 1
    assert "NodeLost" not in kinds
    assert [outcome.code for outcome in nodes.finish("a", "b")] == [0, 0], nodes.stderr_text()
    sampled.assert_applied_once(folder, dataset, [*begun, 1, 2])
