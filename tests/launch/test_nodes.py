"""Several nodes on one machine: who starts first does not matter, who dies is survived, who comes back joins."""

import os
import random
import signal
from dataclasses import dataclass

import pytest

from runtime.agent.ports import free_port
from tests.launch.launchers import EVERSTEP, Ended, Launcher, until

pytest.importorskip("torch")

SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
with open(os.path.join(os.path.dirname(__file__), "lines"), "a") as lines:
    iteration, stop = 0, torch.zeros(1)
    while not stop:
        iteration += 1
        stop[0] = rank == 0 and os.path.exists(os.path.join(os.path.dirname(__file__), "stop"))
        dist.all_reduce(stop)
        if rank == 0:
            lines.write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {world} {iteration} {os.getppid()}\\n")
            lines.flush()
        time.sleep(0.02)
dist.destroy_process_group()
"""
QUICK = "last_call_timeout=2,keep_alive_interval=5,keep_alive_max_attempt=2"
"""A lost node is missed after 10 s, and not waited for much longer."""


@dataclass
class Nodes:
    """Launchers of one job on this machine."""

    launcher: Launcher
    port: int

    def start(self, name: str, *flags: str, nodes: str = "1:2", **more: str) -> int:
        """Start a node; its process."""
        common = ("--nnodes", nodes, "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}")
        patience = f"--rdzv-conf={QUICK}"
        return self.launcher.start(
            EVERSTEP, *common, patience, "--cooldown=0", *flags, "train.py", name=name, **more
        ).pid

    def progress(self) -> list[tuple[int, int, int]]:
        """(restart count, world size, iteration) of rank 0, as it went."""
        path = self.launcher.folder / "lines"
        if not path.exists():
            return []
        return [tuple(map(int, line.split()[:3])) for line in path.read_text().splitlines()]  # type: ignore[misc]

    def trains(self, world: int, after: int = -1) -> int:
        """Wait until a round later than `after` trains with so many workers; its restart count."""

        def going() -> bool:
            last = self.progress()[-1:]
            return bool(last) and last[0][0] > after and last[0][1] == world and last[0][2] > 5

        until(going, lambda: f"a round after {after} with {world} workers; {self.told()}")
        return self.progress()[-1][0]

    def told(self) -> str:
        """What all nodes wrote to stderr."""
        return "".join(f"\n[{path.stem}] {path.read_text()}" for path in sorted(self.launcher.folder.glob("*.err")))

    def finish(self, *names: str) -> list[Ended]:
        """Let the script end; what each of these nodes ended with."""
        (self.launcher.folder / "stop").touch()
        return [self.ended(name) for name in names]

    def ended(self, name: str) -> Ended:
        """Wait for the node's (last) launcher of that name."""
        return self.launcher.ended(self.launcher.named[name], name)

    def masters(self) -> list[int]:
        """Processes of the job's masters."""
        return [pid for pid, command in self.launcher.processes() if "runtime.launch.host" in command]

    def master(self) -> int:
        """The only one."""
        (found,) = self.masters()
        return found

    def gone(self) -> None:
        """Wait until nothing of the job is left."""
        until(lambda: not self.launcher.processes(), lambda: f"the end of {self.launcher.processes()}")
        assert self.launcher.left() == []


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
    assert [ended.code for ended in nodes.finish("a", "b")] == [0, 0], nodes.told()
    nodes.gone()


def test_by_node_rank_and_dlrovers_address_the_host_may_start_last(nodes: Nodes) -> None:
    address = f"127.0.0.1:{nodes.port}"
    for rank in ("1", "0"):
        more = {"NODE_RANK": rank, "DLROVER_MASTER_ADDR": address}
        flags = ("--nnodes=2", "--nproc-per-node=1", "train.py")
        nodes.launcher.start(EVERSTEP, *flags, name=rank, **more)
        if rank == "1":
            until(nodes.launcher.processes, lambda: "the first node")
    nodes.trains(world=2)
    assert [ended.code for ended in nodes.finish("0", "1")] == [0, 0], nodes.told()
    nodes.gone()


@pytest.mark.parametrize("who", ["the host", "the other"])
def test_a_killed_node_is_survived_and_joins_again(nodes: Nodes, who: str) -> None:
    host = nodes.start("a")
    until(nodes.masters, nodes.told)
    other = nodes.start("b")
    first = nodes.trains(world=2)
    kill(host if who == "the host" else other)
    alone = nodes.trains(world=1, after=first)
    again = "c"
    nodes.start(again)
    nodes.trains(world=2, after=alone)
    stays = "b" if who == "the host" else "a"
    assert [ended.code for ended in nodes.finish(stays, again)] == [0, 0], nodes.told()
    nodes.gone()


def test_a_killed_master_is_replaced_and_the_workers_never_stop(nodes: Nodes) -> None:
    nodes.start("a")
    nodes.start("b")
    first = nodes.trains(world=2)
    master = nodes.master()
    kill(master)
    until(lambda: "another one takes over" in nodes.told(), nodes.told)
    seen = len(nodes.progress())
    until(lambda: len(nodes.progress()) > seen + 50, nodes.told)
    assert {count for count, _, _ in nodes.progress()} == {first}, "no worker was restarted"
    assert nodes.master() != master
    assert [ended.code for ended in nodes.finish("a", "b")] == [0, 0], nodes.told()
    nodes.gone()


@pytest.mark.parametrize("who", ["the host", "the other"])
def test_sigterm_lets_a_node_leave_and_the_others_go_on(nodes: Nodes, who: str) -> None:
    host = nodes.start("a")
    until(nodes.masters, nodes.told)
    other = nodes.start("b")
    first = nodes.trains(world=2)
    leaver, stays = ("a", "b") if who == "the host" else ("b", "a")
    kill(host if who == "the host" else other, signal.SIGTERM)
    assert nodes.ended(leaver).code == 128 + signal.SIGTERM, nodes.told()
    nodes.trains(world=1, after=first)
    assert "SIGTERM: this node leaves" in nodes.launcher.text(leaver, "err")
    assert [ended.code for ended in nodes.finish(stays)] == [0], nodes.told()
    nodes.gone()


def test_an_error_ends_all_nodes_with_1_and_tells_the_traceback_where_it_happened(nodes: Nodes) -> None:
    failing = SCRIPT.replace("while not stop:", "while not stop:\n        assert rank or iteration < 5, 'went wrong'")
    (nodes.launcher.folder / "train.py").write_text(failing)
    nodes.start("a", nodes="2")
    nodes.start("b", nodes="2")
    ended = [nodes.ended("a"), nodes.ended("b")]
    assert [end.code for end in ended] == [1, 1], nodes.told()
    assert any("AssertionError: went wrong" in end.err and "rank 0 (local rank 0" in end.err for end in ended)
    nodes.gone()


def test_ctrl_c_ends_a_node_that_is_alone_at_once(nodes: Nodes) -> None:
    process = nodes.launcher.start(EVERSTEP, "--standalone", "--nproc-per-node=2", "train.py", name="a")
    nodes.trains(world=2)
    kill(process.pid, signal.SIGINT)
    assert nodes.launcher.ended(process, "a").code == 128 + signal.SIGINT
    nodes.gone()


def test_what_a_killed_launch_left_behind_the_next_one_removes(nodes: Nodes) -> None:
    process = nodes.launcher.start(EVERSTEP, "--standalone", "--nproc-per-node=2", "train.py", name="a")
    nodes.trains(world=2)
    kill(process.pid)
    until(lambda: not nodes.launcher.processes(), nodes.told)
    assert nodes.launcher.left() != []
    assert nodes.launcher.ended(nodes.launcher.start(EVERSTEP, "--no-python", "true", name="b"), "b").code == 0
    nodes.gone()
