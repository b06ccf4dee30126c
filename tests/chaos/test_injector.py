"""Faults done to real processes: each says when it fired, and what cannot be done here is refused with the reason."""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from everstep.cli.main import main
from everstep.runtime.chaos import (
    Fault,
    Kind,
    NotFiredError,
    NotPossibleError,
    full_disk,
    load,
    packet_loss,
    store_outage,
)
from everstep.runtime.chaos.on_machine import MachineInjector
from everstep.runtime.chaos.progress import Progress
from everstep.runtime.job.events import NodeGone
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.platform.registry import Registration, Registry
from everstep.runtime.store import StoreError, open_store
from everstep.runtime.system.processes import start_time
from tests.harness import wait_until
from tests.job.world import World, platform


@pytest.fixture
def node(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is registered as the node n of the job j."""
    process = subprocess.Popen(["sleep", "60"])
    began = start_time(process.pid)
    assert began is not None
    Registry(tmp_path / "nodes").put(Registration("n", "j", "worker", "h", process.pid, began, time.time()))
    yield process
    process.kill()
    process.wait()


def injector(folder: Path) -> MachineInjector:
    return MachineInjector(folder, "train", Progress(open_store(str(folder / "store")), "j"), random.Random(0))


def test_a_killed_node_is_gone_when_its_fault_has_fired(tmp_path: Path, node: subprocess.Popen[bytes]) -> None:
    fired = asyncio.run(injector(tmp_path).inject(Fault(Kind.NODE, "n")))
    assert not psutil.pid_exists(node.pid)
    assert (fired.node, fired.evidence) == ("n", f"SIGKILL of process {node.pid}; ended")


def test_a_frozen_node_stands_still_and_goes_on(tmp_path: Path, node: subprocess.Popen[bytes]) -> None:
    fired = asyncio.run(injector(tmp_path).inject(Fault(Kind.FREEZE, "n", seconds=0.05)))
    assert fired.evidence == "1 processes were stopped for 0.05 s"
    wait_until(lambda: psutil.Process(node.pid).status() != psutil.STATUS_STOPPED, "the node goes on")


def test_a_job_that_waits_for_lost_nodes_is_no_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, progress = World(platform({"worker": RoleSpec(4, 1)})), Progress(open_store(str(tmp_path)), "j")
    monkeypatch.setattr(progress, "state", lambda: world.state)
    world.join_all()
    for node in ("worker-1-0", "worker-3-0"):
        world.send(NodeGone(node, "test"))
    world.join("worker-0-0")
    assert (len(world.names(NodePhase.REQUESTED)), progress.size()) == (2, 4)


def test_kinds_that_need_a_cluster_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleError, match="it needs machines of a cluster"):
        asyncio.run(injector(tmp_path).inject(Fault(Kind.EVICT, "n")))


def test_a_node_without_a_limit_cannot_run_out_of_it(tmp_path: Path, node: subprocess.Popen[bytes]) -> None:
    with pytest.raises(NotPossibleError, match="its nodes have no memory limit: the job must set one"):
        asyncio.run(injector(tmp_path).inject(Fault(Kind.MEMORY, "n")))


def test_a_fault_for_a_master_that_is_not_there_has_not_fired(tmp_path: Path) -> None:
    with pytest.raises(NotFiredError, match="the train step's process is not there"):
        asyncio.run(injector(tmp_path).inject(Fault(Kind.MASTER)))


def test_a_part_of_the_store_is_out_of_reach_and_comes_back_whole(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("jobs/j/a", b"1")
    with store_outage.out_of_reach(tmp_path / "jobs" / "j"):
        with pytest.raises(StoreError):
            store.create("jobs/j/b", b"2")
        assert list(store.list("jobs/j/")) == []
    assert store.get("jobs/j/a") == b"1"
    assert store.create("jobs/j/b", b"2")
    assert sorted(os.listdir(tmp_path / "jobs")) == ["j"]


def test_a_full_disk_has_no_room_until_the_fault_is_over(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", tmp_path], check=False)
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    try:
        assert full_disk.refusal(tmp_path / "store") == ""
        (tmp_path / "big").write_bytes(bytes(2 << 20))
        with full_disk.filled(tmp_path) as filler:
            assert not full_disk.has_room(tmp_path)
            (tmp_path / "big").unlink()
            assert full_disk.has_room(tmp_path)
            filler.fill()
            assert not full_disk.has_room(tmp_path)
        assert full_disk.has_room(tmp_path)
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_disk_that_others_use_is_not_filled(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleError, match="put the store on one of its own"):
        asyncio.run(injector(tmp_path).inject(Fault(Kind.DISK)))


def test_all_packets_of_a_group_are_dropped_and_of_nobody_else() -> None:
    if why := packet_loss.refusal():
        pytest.skip(why)
    import socket

    group = packet_loss.make_group("test")
    words = [sys.executable, "-m", load.__name__, "connect", "127.0.0.1"]
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            words.append(str(server.getsockname()[1]))
            inside = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *words]
            assert subprocess.run(inside, check=False).returncode == 0
            with packet_loss.cut_off(group):
                assert subprocess.run(inside, check=False).returncode == 1
                assert subprocess.run(words, check=False).returncode == 0
            assert subprocess.run(inside, check=False).returncode == 0
    finally:
        packet_loss.remove(group)
    assert not group.exists()


def test_a_group_that_is_removed_leaves_its_processes_running(node: subprocess.Popen[bytes]) -> None:
    if why := packet_loss.refusal():
        pytest.skip(why)
    group = packet_loss.make_group("test")
    packet_loss.enter(group, node.pid)
    packet_loss.remove(group)
    assert not group.exists()
    assert node.poll() is None


def test_the_group_of_a_killed_process_is_removed_and_that_of_a_live_one_stays() -> None:
    if why := packet_loss.refusal():
        pytest.skip(why)
    code = "import os, signal; from everstep.runtime.chaos import packet_loss; print(packet_loss.make_group('test'),"
    code += " flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    completed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    group_left, own = Path(completed.stdout.strip()), packet_loss.make_group("test")
    assert completed.returncode == -9
    assert group_left.is_dir()
    try:
        packet_loss.remove_abandoned()
        assert not group_left.exists()
        assert own.is_dir()
    finally:
        packet_loss.remove(own)


def test_the_command_names_an_unknown_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "r", "--kind", "flood"]) == 2
    assert "--kind flood: not known; use crash" in capsys.readouterr().err


def test_a_run_on_a_cluster_is_not_harmed_without_yes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "r", "-n", "ml", "--kind", "node"]) == 2
    assert "r is on a cluster: give --yes to harm it" in capsys.readouterr().err


def test_the_command_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "r", "--runs", str(tmp_path)]) == 2
    assert "no such run" in capsys.readouterr().err
