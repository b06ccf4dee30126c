"""Several nodes on one machine: who starts first does not matter, who dies is survived, who comes back joins."""

import os
import random
import signal
from pathlib import Path

import pytest

from everstep.runtime.agent.ports import free_port
from tests.launch.launchers import EVERSTEP, Launcher, until
from tests.launch.nodes import SCRIPT, Nodes


@pytest.fixture
def nodes(launcher: Launcher) -> Nodes:
    """A job of its own."""
    (launcher.folder / "train.py").write_text(SCRIPT)
    return Nodes(launcher, free_port(random.Random()))


def kill(pid: int, signum: int = signal.SIGKILL) -> None:
    os.kill(pid, signum)


def test_two_nodes_find_each_other_and_end_together(nodes: Nodes) -> None:
    nodes.start("a", nodes="2")
    nodes.start("b", nodes="2")
    nodes.trains(world=2)
    assert [outcome.code for outcome in nodes.finish("a", "b")] == [0, 0], nodes.stderr_text()
    nodes.wait_until_gone()


def test_by_node_rank_and_dlrovers_address_the_host_may_start_last(nodes: Nodes) -> None:
    address = f"127.0.0.1:{nodes.port}"
    for rank in ("1", "0"):
        more = {"NODE_RANK": rank, "DLROVER_MASTER_ADDR": address}
        flags = ("--nnodes=2", "--nproc-per-node=1", "train.py")
        nodes.launcher.start(EVERSTEP, *flags, name=rank, **more)
        if rank == "1":
            until(nodes.launcher.processes, lambda: "the first node")
    nodes.trains(world=2)
    assert [outcome.code for outcome in nodes.finish("0", "1")] == [0, 0], nodes.stderr_text()
    nodes.wait_until_gone()


def test_no_backend_need_be_named_for_a_range_of_nodes(nodes: Nodes) -> None:
    endpoint = f"--rdzv-endpoint=127.0.0.1:{nodes.port}"
    for name in "ab":
        nodes.launcher.start(EVERSTEP, "--nnodes=1:2", endpoint, "--cooldown=0", "train.py", name=name)
    nodes.trains(world=2)
    assert [outcome.code for outcome in nodes.finish("a", "b")] == [0, 0], nodes.stderr_text()
    nodes.wait_until_gone()


@pytest.mark.parametrize("who", ["the host", "the other"])
def test_a_killed_node_is_survived_and_joins_again(nodes: Nodes, who: str) -> None:
    host = nodes.start("a")
    until(nodes.masters, nodes.stderr_text)
    other = nodes.start("b")
    first = nodes.trains(world=2)
    kill(host if who == "the host" else other)
    alone = nodes.trains(world=1, after=first)
    again = "c"
    nodes.start(again)
    nodes.trains(world=2, after=alone)
    stays = "b" if who == "the host" else "a"
    assert [outcome.code for outcome in nodes.finish(stays, again)] == [0, 0], nodes.stderr_text()
    nodes.wait_until_gone()


def test_a_node_with_a_number_comes_back_under_it_at_once_and_cannot_be_there_twice(nodes: Nodes) -> None:
    def start(name: str, rank: int) -> int:
        more = {"NODE_RANK": str(rank), "DLROVER_MASTER_ADDR": f"127.0.0.1:{nodes.port}"}
        return nodes.launcher.start(EVERSTEP, "--nnodes=2", "train.py", name=name, **more).pid

    start("a", 0)
    second = start("b", 1)
    first = nodes.trains(world=2)
    start("twice", 1)
    refused_outcome = nodes.wait_for_end("twice")
    assert (refused_outcome.code, len(refused_outcome.err.splitlines())) == (2, 1)
    assert f"worker-1 of job none-{nodes.port} already runs here, as process {second}" in refused_outcome.err
    kill(second)
    until(lambda: nodes.launcher.named["b"].poll() is not None, nodes.stderr_text)
    start("c", 1)
    nodes.trains(world=2, after=first)
    assert [outcome.code for outcome in nodes.finish("a", "c")] == [0, 0], nodes.stderr_text()
    nodes.wait_until_gone()


def test_a_killed_master_is_replaced_and_the_workers_never_stop(nodes: Nodes) -> None:
    nodes.start("a")
    nodes.start("b")
    first = nodes.trains(world=2)
    begun = len(nodes.progress())
    master = nodes.master()
    kill(master)
    until(lambda: "another one takes over" in nodes.stderr_text(), nodes.stderr_text)
    count_before = len(nodes.progress())
    until(lambda: len(nodes.progress()) > count_before + 50, nodes.stderr_text)
    assert {count for count, _, _ in nodes.progress()[begun:]} == {first}, "no worker was restarted"
    until(nodes.masters, nodes.stderr_text)
    assert nodes.master() != master
    assert [outcome.code for outcome in nodes.finish("a", "b")] == [0, 0], nodes.stderr_text()
    nodes.wait_until_gone()


def test_a_master_at_an_ipv6_address_is_where_the_journal_says(nodes: Nodes) -> None:
    nodes.host = "[::1]"
    shared = ("--store", "store", "--rdzv-id=mine")
    nodes.start("a", *shared)
    until(nodes.masters, nodes.stderr_text)
    nodes.start("b", *shared)
    nodes.trains(world=2)
    kill(nodes.master())
    until(lambda: "another one takes over" in nodes.stderr_text(), nodes.stderr_text)
    assert [outcome.code for outcome in nodes.finish("a", "b")] == [0, 0], nodes.stderr_text()
    nodes.wait_until_gone()


@pytest.mark.parametrize("who", ["the host", "the other"])
def test_sigterm_lets_a_node_leave_and_the_others_go_on(nodes: Nodes, who: str) -> None:
    host = nodes.start("a")
    until(nodes.masters, nodes.stderr_text)
    other = nodes.start("b")
    first = nodes.trains(world=2)
    leaver, stays = ("a", "b") if who == "the host" else ("b", "a")
    kill(host if who == "the host" else other, signal.SIGTERM)
    assert nodes.wait_for_end(leaver).code == 128 + signal.SIGTERM, nodes.stderr_text()
    nodes.trains(world=1, after=first)
    assert "SIGTERM: this node leaves" in nodes.launcher.text(leaver, "err")
    assert [outcome.code for outcome in nodes.finish(stays)] == [0], nodes.stderr_text()
    nodes.wait_until_gone()


def test_an_error_ends_all_nodes_with_1_and_tells_the_traceback_where_it_happened(nodes: Nodes) -> None:
    failing = SCRIPT.replace("while not stop:", "while not stop:\n        assert rank or iteration < 5, 'went wrong'")
    (nodes.launcher.folder / "train.py").write_text(failing)
    nodes.start("a", nodes="2")
    nodes.start("b", nodes="2")
    outcomes = [nodes.wait_for_end("a"), nodes.wait_for_end("b")]
    assert [end.code for end in outcomes] == [1, 1], nodes.stderr_text()
    assert any("AssertionError: went wrong" in end.err and "rank 0 (local rank 0" in end.err for end in outcomes)
    nodes.wait_until_gone()


def test_ctrl_c_ends_a_node_that_is_alone_at_once(nodes: Nodes) -> None:
    process = nodes.launcher.start(EVERSTEP, "--standalone", "--nproc-per-node=2", "train.py", name="a")
    nodes.trains(world=2)
    kill(process.pid, signal.SIGINT)
    assert nodes.launcher.wait_for_end(process, "a").code == 128 + signal.SIGINT
    nodes.wait_until_gone()


def test_what_a_killed_launch_left_behind_the_next_one_removes(nodes: Nodes) -> None:
    process = nodes.launcher.start(EVERSTEP, "--standalone", "--nproc-per-node=2", "train.py", name="a")
    nodes.trains(world=2)
    kill(process.pid)
    until(lambda: not nodes.launcher.processes(), nodes.stderr_text)
    assert nodes.launcher.leftovers() != []
    assert nodes.launcher.wait_for_end(nodes.launcher.start(EVERSTEP, "--no-python", "true", name="b"), "b").code == 0
    nodes.wait_until_gone()


def test_with_a_shared_store_another_node_takes_over_when_the_host_is_gone_for_good(nodes: Nodes) -> None:
    shared = ("--store", "store", "--rdzv-id=mine")
    host = nodes.start("a", *shared)
    until(nodes.masters, nodes.stderr_text)
    nodes.start("b", *shared)
    first = nodes.trains(world=2)
    first_master = nodes.master()
    kill(host)
    kill(first_master)
    alone = nodes.trains(world=1, after=first)
    until(lambda: "this node starts the next one" in nodes.launcher.text("b", "err"), nodes.stderr_text)
    until(nodes.masters, nodes.stderr_text)
    nodes.start("c", *shared)
    nodes.trains(world=2, after=alone)
    assert "this node starts" not in nodes.launcher.text("c", "err"), "it found the master by the journal"
    assert [outcome.code for outcome in nodes.finish("b", "c")] == [0, 0], nodes.stderr_text()
    nodes.wait_until_gone()


def test_a_spare_node_of_a_launched_job_is_warm_when_it_takes_a_lost_nodes_seat(nodes: Nodes) -> None:
    script = Path(__file__).with_name("survivor.py").read_text()
    (nodes.launcher.folder / "train.py").write_text(script)
    started = {name: nodes.start(name, "--spares=1", nodes="2", LOGLEVEL="INFO") for name in "abc"}

    def texts(words: str) -> list[str]:
        return [name for name in started if words in nodes.launcher.text(name, "err")]

    first = nodes.trains(world=2)
    until(lambda: len(texts("a spare is warm")) == 3, nodes.stderr_text)
    waits = next(name for name in started if name not in texts("ranks 0..0 of 2") + texts("ranks 1..1 of 2"))
    lost, stays = (name for name in started if name != waits)
    kill(started[lost])
    nodes.trains(world=2, after=first)
    assert texts("come from warm spares") == [waits], nodes.stderr_text()
    assert [ended.code for ended in nodes.finish(stays, waits)] == [0, 0], nodes.stderr_text()
    until(lambda: not nodes.launcher.processes(), nodes.stderr_text)  # What a killed node held, the next one removes.
