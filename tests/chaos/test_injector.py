"""Faults done to real processes: each says when it fired, and what cannot be done here is refused with the reason."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from everstep.cli.find_job import locate
from everstep.cli.main import main
from everstep.runtime.chaos import (
    Fault,
    FiredFault,
    Kind,
    NotFiredError,
    NotPossibleError,
    clock,
    full_disk,
    groups,
    in_pod,
    load,
    on_machine,
    packet_loss,
    progress,
    slow_disk,
    store_outage,
    victims,
)
from everstep.runtime.chaos.on_machine import MachineInjector
from everstep.runtime.chaos.progress import Progress
from everstep.runtime.job.events import NodeGone
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.records import NodeRequested
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.journal.journal import claim
from everstep.runtime.platform import POD_VARIABLE
from everstep.runtime.platform.registry import Registration, registry_of
from everstep.runtime.store import StoreError, open_store
from everstep.runtime.system.processes import start_time
from everstep.steps.chaos import run as chaos_step
from everstep.steps.chaos.config import Config
from everstep.steps.entry import StepError
from tests.control_groups import control_group
from tests.harness import PATIENCE_S, wait_until
from tests.job.world import World, platform


@pytest.fixture
def node(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is registered as the node n of the job j."""
    process = subprocess.Popen(["sleep", "60"])
    began = start_time(process.pid)
    assert began is not None
    registry_of(tmp_path, "j").put(Registration("n", "j", "worker", "h", process.pid, began, time.time()))
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
    assert (len(world.names(NodePhase.REQUESTED)), progress.size("worker")) == (2, 4)


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
        with (
            pytest.raises(NotPossibleError, match=r"out of reach already.*if that fault was killed: rm .*/j && mv "),
            store_outage.out_of_reach(tmp_path / "jobs" / "j"),
        ):
            pass
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

    group = groups.make_group("test")
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
        groups.remove(group)
    assert not group.exists()


def test_a_group_that_is_removed_leaves_its_processes_running(node: subprocess.Popen[bytes]) -> None:
    if why := packet_loss.refusal():
        pytest.skip(why)
    group = groups.make_group("test")
    groups.enter(group, node.pid)
    groups.remove(group)
    assert not group.exists()
    assert node.poll() is None


def test_a_drill_that_ends_before_its_fault_puts_the_nodes_back_where_they_were(
    tmp_path: Path, node: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := packet_loss.refusal():
        pytest.skip(why)
    root = groups.find_root()
    assert root is not None
    home, entered = groups.group_of(node.pid, root), list[Path]()

    async def end_early(*_: object) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (group := groups.group_of(node.pid, root)) == home:
                await asyncio.sleep(0.01)
        entered.append(group)
        raise NotFiredError("the training is over")

    monkeypatch.setattr(chaos_step, "_wait_for_moment", end_early)
    monkeypatch.setenv("EVERSTEP_RUN_DIR", str(tmp_path))
    monkeypatch.delenv(POD_VARIABLE, raising=False)
    (tmp_path / "store").mkdir()
    with pytest.raises(StepError, match="network did not fire: the training is over"):
        chaos_step.run(Config(kind="network", job="j", store=str(tmp_path / "store")))
    assert not entered[0].exists()
    assert groups.group_of(node.pid, root) == home
    assert node.poll() is None


def test_a_process_that_is_forked_while_its_group_is_removed_leaves_it_too(
    node: subprocess.Popen[bytes], agent: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := packet_loss.refusal():
        pytest.skip(why)
    group, enter, forked = groups.make_group("test"), groups.enter, [agent.pid]

    def fork_meanwhile(target: Path, pid: int) -> None:
        enter(target, pid)
        if forked:
            enter(group, forked.pop())

    groups.enter(group, node.pid)
    monkeypatch.setattr(groups, "enter", fork_meanwhile)
    groups.remove(group)
    assert not forked
    assert not group.exists()


def test_processes_that_the_kernel_did_not_kill_are_no_longer_the_first_that_it_would(
    agent: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, scores = victims.workers_of(agent.pid), list[str]()
    file = Path(f"/proc/{workers[0].pid}/oom_score_adj")
    before = file.read_text()

    async def note_score(*words: str) -> None:
        scores.append(file.read_text())
        raise NotFiredError("test")

    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    monkeypatch.setattr(victims, "start_load", note_score)
    with pytest.raises(NotFiredError, match="test"):
        asyncio.run(victims.run_out_of_memory(tmp_path, workers))
    assert [*scores, file.read_text()] == ["1000\n", before]


def test_a_fault_that_the_system_refuses_is_told_in_one_line(tmp_path: Path, node: subprocess.Popen[bytes]) -> None:
    with pytest.raises(NotFiredError, match="No such file or directory"):
        asyncio.run(injector(tmp_path).inject(Fault(Kind.STORE, seconds=0.1)))


def test_a_job_that_could_not_be_resized_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, asked = World(platform({"worker": RoleSpec(2, 1)})), list[int]()
    world.join_all()

    async def refuse(role: str, nodes: int) -> None:
        asked.append(nodes)
        raise NotFiredError("no master answers")

    resizing = injector(tmp_path)
    monkeypatch.setattr(resizing._progress, "state", lambda: world.state)
    monkeypatch.setattr(resizing, "_scale", refuse)
    with pytest.raises(NotFiredError, match="no master answers"):
        asyncio.run(resizing.inject(Fault(Kind.RESIZE)))
    assert asked == [3, 2]


def test_a_job_is_resized_by_one_fault_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, asked = World(platform({"worker": RoleSpec(2, 1)})), list[int]()
    world.join_all()

    def make_injector() -> MachineInjector:
        resizing = injector(tmp_path)
        monkeypatch.setattr(resizing._progress, "state", lambda: world.state)
        monkeypatch.setattr(resizing, "_scale", scale)
        return resizing

    async def scale(role: str, nodes: int) -> None:
        asked.append(nodes)
        if len(asked) == 1:
            with pytest.raises(NotPossibleError, match="another resize of it is under way; try again when that one"):
                await make_injector().inject(Fault(Kind.RESIZE))
            raise NotFiredError("no master answers")

    with pytest.raises(NotFiredError, match="no master answers"):
        asyncio.run(make_injector().inject(Fault(Kind.RESIZE)))
    assert asked == [3, 2]


def is_frozen(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


def has_other_clock(process: psutil.Process) -> bool:
    return clock._read(process.pid) != clock._originals()


@pytest.mark.parametrize(("kind", "is_hit"), [(Kind.CLOCK, has_other_clock), (Kind.FREEZE, is_frozen)])
def test_a_node_meets_each_fault_that_is_undone_one_at_a_time(
    kind: Kind, is_hit: Callable[[psutil.Process], bool], tmp_path: Path, node: subprocess.Popen[bytes]
) -> None:
    if kind is Kind.CLOCK and (why := clock.refusal()):
        pytest.skip(why)
    victim = psutil.Process(node.pid)

    async def story() -> FiredFault:
        first = asyncio.create_task(injector(tmp_path).inject(Fault(kind, "n", seconds=600)))
        await asyncio.sleep(0)
        wait_until(lambda: is_hit(victim), "it is hit")
        with pytest.raises(NotPossibleError, match=f"another {kind} of it is under way; try again when that one"):
            await injector(tmp_path).inject(Fault(kind, "n", seconds=0.001))
        assert is_hit(victim)
        first.cancel()
        await asyncio.wait([first])
        return await injector(tmp_path).inject(Fault(kind, "n", seconds=0.001))

    assert asyncio.run(story()).evidence.startswith("1 processes ")
    assert not is_hit(victim)


def test_a_fault_whose_program_was_killed_keeps_no_other_away() -> None:
    code = "import signal\nfrom everstep.runtime.chaos import Kind, victims\n"
    code += "with victims.alone(Kind.CLOCK, 'test'): print(flush=True), signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        with pytest.raises(NotPossibleError, match="another clock"), victims.alone(Kind.CLOCK, "test"):
            pass
        holder.kill()
    with victims.alone(Kind.CLOCK, "test"), victims.alone(Kind.CLOCK, "another"), victims.alone(Kind.SLOW, "test"):
        pass


def test_the_clocks_of_the_others_are_set_right_although_one_process_cannot_be(
    clock_reader: subprocess.Popen[str], node: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := clock.refusal():
        pytest.skip(why)
    replace, stuck = clock._replace, psutil.Process(node.pid)

    def replace_unless_stuck(process: psutil.Process, functions: Mapping[str, bytes]) -> bool:
        if process == stuck and functions == clock._originals():
            raise OSError("stuck")
        return replace(process, functions)

    monkeypatch.setattr(clock, "_replace", replace_unless_stuck)
    with (
        pytest.raises(OSError, match="stuck"),
        clock.ahead(lambda: [stuck, psutil.Process(clock_reader.pid)]),
    ):
        assert read_clock(clock_reader) == clock.AHEAD_S
    assert read_clock(clock_reader) == 0


def test_the_group_of_a_killed_process_is_removed_and_that_of_a_live_one_stays() -> None:
    if why := packet_loss.refusal():
        pytest.skip(why)
    code = "import os, signal; from everstep.runtime.chaos import groups; print(groups.make_group('test'),"
    code += " flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    completed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    group_left, own = Path(completed.stdout.strip()), groups.make_group("test")
    assert completed.returncode == -9
    assert group_left.is_dir()
    try:
        groups.remove_abandoned()
        assert not group_left.exists()
        assert own.is_dir()
    finally:
        groups.remove(own)


@pytest.fixture
def clock_reader() -> Iterator[subprocess.Popen[str]]:
    """A process that says for each line that it reads by how much its clock differs from the one in that line; a thread
    of it reads the clock all the time."""
    code = "import sys, threading, time; spin = lambda: [time.time() for _ in iter(int, 1)];"
    code += "threading.Thread(target=spin, daemon=True).start();"
    code += "[print(round(time.time() - float(line)), flush=True) for line in sys.stdin]"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def read_clock(process: subprocess.Popen[str]) -> int:
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{time.time()}\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def test_the_clock_of_a_process_is_ahead_and_of_nobody_else(clock_reader: subprocess.Popen[str]) -> None:
    if why := clock.refusal():
        pytest.skip(why)
    before = read_clock(clock_reader)
    with clock.ahead(lambda: [psutil.Process(clock_reader.pid)]) as count:
        during = read_clock(clock_reader)
    assert (count, before, during, read_clock(clock_reader)) == (1, 0, clock.AHEAD_S, 0)


def test_the_clock_of_a_process_that_has_ended_cannot_be_ahead() -> None:
    if why := clock.refusal():
        pytest.skip(why)
    process = subprocess.Popen(["sleep", "60"])
    victim = psutil.Process(process.pid)
    process.kill()
    with clock.ahead(lambda: [victim]) as count:
        assert count == 0
    process.wait()


def test_a_disk_is_slow_for_a_group_and_for_nobody_else(tmp_path: Path, node: subprocess.Popen[bytes]) -> None:
    if why := slow_disk.refusal(tmp_path):
        pytest.skip(why)
    fired = asyncio.run(injector(tmp_path).inject(Fault(Kind.SLOW_DISK, "n", seconds=0.1)))
    assert fired.evidence.startswith("2 MiB took ")
    assert node.poll() is None
    made = [
        group for root in (groups.DISKS_V1, *groups.ROOTS) for group in root.glob(f"everstep-chaos-{os.getpid()}-*")
    ]
    assert not made


def test_processes_are_back_in_their_group_when_the_disk_is_fast_again(
    tmp_path: Path, agent: subprocess.Popen[bytes]
) -> None:
    if why := slow_disk.refusal(tmp_path):
        pytest.skip(why)
    root = groups.DISKS_V1 if groups.DISKS_V1.is_dir() else groups.find_root()
    assert root is not None
    (server,) = victims.children_running(agent.pid, victims.AGENT_SERVER)
    with control_group(root) as own:
        groups.enter(own, server.pid)
        with slow_disk.slow(tmp_path, "test", lambda: [psutil.Process(agent.pid), server]) as group:
            during = {groups.group_of(pid, root) for pid in (agent.pid, server.pid)}
            workers = victims.workers_of(agent.pid)
            for worker in workers:  # As one that was forked meanwhile.
                groups.enter(group, worker.pid)
        places = [groups.group_of(process.pid, root) for process in (server, *workers)]
        for process in (server, *workers):
            groups.enter(root, process.pid)
    assert during == {group}
    assert places == [own] * 2
    assert groups.group_of(agent.pid, root) == root


def test_the_disk_of_a_partition_is_the_one_that_can_be_slow(tmp_path: Path) -> None:
    disk = tmp_path / "devices" / "sda"
    (disk / "sda1").mkdir(parents=True)
    (disk / "dev").write_text("8:0\n")
    (disk / "sda1" / "partition").write_text("1\n")
    (tmp_path / "8:0").symlink_to(disk)
    (tmp_path / "8:1").symlink_to(disk / "sda1")
    assert [slow_disk.whole_disk(device, tmp_path) for device in ("8:1", "8:0", "98:0")] == ["8:0", "8:0", "98:0"]


def test_a_file_system_without_a_disk_cannot_be_slow() -> None:
    assert "has no disk of its own" in slow_disk.refusal(Path("/dev/shm"))


@pytest.fixture
def agent() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child and a grandchild, like an agent with its fork server and a training process."""
    server = "import subprocess; subprocess.run(['sleep', '60'])"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {server!r}, {victims.AGENT_SERVER!r}])"
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: victims.workers_of(process.pid), "it has all its processes")
    below = psutil.Process(process.pid).children(recursive=True)
    yield process
    for child in below:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.kill()
    process.wait()


def test_the_fork_server_that_is_killed_is_the_one_with_the_training_processes() -> None:
    serves, waits = ("import subprocess; subprocess.run(['sleep', '60'])", "import signal; signal.pause()")
    start = "Popen([sys.executable, '-c', {!r}, " + repr(victims.AGENT_SERVER) + "])"
    code = f"import sys\nfrom subprocess import Popen\n{start.format(waits)}\n{start.format(serves)}.wait()"
    with subprocess.Popen([sys.executable, "-c", code]) as agent:
        wait_until(lambda: victims.workers_of(agent.pid), "it has all its processes")
        below = psutil.Process(agent.pid).children(recursive=True)
        servers = wait_until(
            lambda: found if len(found := victims.children_running(agent.pid, victims.AGENT_SERVER)) == 2 else None,
            "both fork servers",
        )
        (worker,), (server,) = victims.workers_of(agent.pid), victims.server_of(agent.pid)
        for process in (psutil.Process(agent.pid), *below):
            process.kill()
    assert server in servers
    assert worker.pid not in (server.pid for server in servers)
    assert server == servers[1]


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.FORK_SERVER])
def test_a_program_in_the_pod_kills_the_agents_processes(agent: subprocess.Popen[bytes], kind: Kind) -> None:
    (worker,), (server,) = victims.workers_of(agent.pid), victims.children_running(agent.pid, victims.AGENT_SERVER)
    fired = asyncio.run(in_pod.inject(Fault(kind), agent.pid))
    killed = worker if kind is Kind.CRASH else server
    assert fired.evidence == f"SIGKILL of process {killed.pid}; ended"


def test_a_program_in_the_pod_slows_the_training_down(agent: subprocess.Popen[bytes]) -> None:
    fired = asyncio.run(in_pod.inject(Fault(Kind.SLOW, seconds=0.1, share=0.5), agent.pid))
    assert fired.evidence.startswith("stopped 1 times")


def test_a_program_in_the_pod_sets_the_clock_of_all_processes(agent: subprocess.Popen[bytes]) -> None:
    if why := clock.refusal():
        pytest.skip(why)
    fired = asyncio.run(in_pod.inject(Fault(Kind.CLOCK, seconds=0.1), agent.pid))
    assert fired.evidence == "3 processes read a clock that was 3600 s ahead for 0.1 s"


def test_a_program_in_a_pod_without_a_training_has_not_fired(node: subprocess.Popen[bytes]) -> None:
    with pytest.raises(NotFiredError, match="the node has no such process"):
        asyncio.run(in_pod.inject(Fault(Kind.CRASH), node.pid))


def test_the_command_names_an_unknown_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "r", "--kind", "flood"]) == 2
    assert "--kind flood: not known; use crash" in capsys.readouterr().err


def test_a_check_before_the_training_cannot_fail_while_it_trains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "r", "--kind", "faulty"]) == 2
    assert "chaos_drill.py --only faulty-at-start" in capsys.readouterr().err


def test_a_run_on_a_cluster_is_not_harmed_without_yes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "r", "-n", "ml", "--kind", "node"]) == 2
    assert "r is on a cluster: give --yes to harm it" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_command_that_is_told_to_end_undoes_its_fault(
    started_run: Path, node: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    words = ["chaos", started_run.name, "--kind", "freeze", "--node", "n", "--seconds", "600"]
    words += ["--runs", str(started_run.parent)]
    # A signal that this process ignores, as under nohup, its children would ignore, too.
    words = ["env", f"--default-signal={number.name.removeprefix('SIG')}", sys.executable, "-m", "everstep", *words]
    command = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    victim = psutil.Process(node.pid)
    wait_until(lambda: victim.status() == psutil.STATUS_STOPPED, "the node stands still")
    command.send_signal(number)
    _, said = command.communicate()
    assert (command.returncode, said) == (128 + number, "freeze: told to end; what it held is released\n")
    assert victim.status() != psutil.STATUS_STOPPED


@pytest.fixture
def started_run(tmp_path: Path) -> Path:
    """The folder of a run whose job j has begun, and has no node yet."""
    store = open_store(str(tmp_path / "store"))
    journal = claim(store, "j", "127.0.0.1:1", time.time())[0]
    requested = NodeRequested(time=time.time(), node="n", role="worker", index=0, launch=0, host="h")
    journal.write(journal.draft([requested]))
    parameters = [{"name": "store", "value": store.uri}]
    workflow = {"metadata": {"name": "r", "uid": "u"}, "spec": {"arguments": {"parameters": parameters}}}
    (tmp_path / "workflow.json").write_text(json.dumps(workflow))
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "j.token").write_text("t")
    return tmp_path


def test_a_command_that_waits_for_a_node_says_so(
    started_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(on_machine, "SEEN_S", 0.3)
    monkeypatch.setattr(progress, "TOLD_AFTER_S", 0.1)
    assert main(["chaos", started_run.name, "--runs", str(started_run.parent)]) == 1
    what = "any node is alive and trains"
    assert capsys.readouterr().err.splitlines() == [
        f"crash waits until {what}; gives up after 0 s", f"crash did not fire: {what}: not within 0 s"
    ]  # fmt: skip


def test_a_run_that_has_ended_meets_no_fault(started_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workflow = json.loads((started_run / "workflow.json").read_text())
    workflow["status"] = {"phase": "Failed", "finishedAt": "2026-11-28T08:00:00Z"}
    (started_run / "workflow.json").write_text(json.dumps(workflow))
    assert main(["chaos", started_run.name, "--runs", str(started_run.parent)]) == 2
    assert "its run ended at 2026-11-28T08:00:00Z; `everstep workflow resume" in capsys.readouterr().err


@pytest.mark.parametrize("job", ["runs/store/jobs/u-train", "s3://bucket/prefix/jobs/u-train"])
def test_a_store_does_not_say_where_the_nodes_are(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", job]) == 2
    assert f"{job}: a store does not know where the nodes are" in capsys.readouterr().err


def test_a_step_whose_name_ends_another_steps_name_is_found(tmp_path: Path) -> None:
    workflow = {"metadata": {"uid": "u"}, "spec": {"arguments": {"parameters": [{"name": "store", "value": "s"}]}}}
    (tmp_path / "workflow.json").write_text(json.dumps(workflow))
    (tmp_path / "jobs").mkdir()
    for job in ("u-train", "u-pre-train"):
        (tmp_path / "jobs" / f"{job}.token").touch()
    assert [locate(tmp_path, f"r/{step}")[1] for step in ("train", "pre-train")] == ["u-train", "u-pre-train"]


def test_what_happens_to_the_whole_job_happens_to_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "r", "--kind", "master", "--node", "worker-0-0"]) == 2
    assert "--node worker-0-0: master happens to the whole job; leave --node out" in capsys.readouterr().err


def test_chaosblade_needs_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "r", "--kind", "cpu", "--chaosblade"]) == 2
    assert "give --namespace, too" in capsys.readouterr().err


def test_the_command_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "r", "--runs", str(tmp_path)]) == 2
    assert "no such run" in capsys.readouterr().err
