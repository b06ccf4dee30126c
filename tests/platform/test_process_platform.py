"""Nodes as processes of this machine: made once, found again, ended with everything."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.platform import NodeEnd, NodeRequest, debris, process
from everstep.runtime.platform.process import ProcessPlatform, end_nodes
from everstep.runtime.platform.registry import Registration, registry_of
from everstep.runtime.system import processes

DEADLINE_S = 30
SLEEPS = "import threading; print(flush=True); threading.Event().wait()"
WITH_A_CHILD = f"import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True); {SLEEPS}"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[str]:
    """A job's name; its nodes are ended."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    yield name
    end_nodes(tmp_path)
    debris.remove_debris(name, "worker-0-0")


def platform(folder: Path, job: str, code: str = SLEEPS) -> ProcessPlatform:
    """A platform whose nodes run this code."""
    return ProcessPlatform(folder, job, (sys.executable, "-c", code))


def request(name: str = "worker-0-0") -> NodeRequest:
    """A node."""
    return NodeRequest(name, "worker", "local-0", {"COLOUR": "green"}, ["--flag"])


async def runs(folder: Path) -> None:
    """Until the node's own code does: before, its process may be in the midst of an exec."""
    await until(lambda: (next(folder.glob("logs/*/worker-0-0.log"))).read_text())


async def next_gone(processes_platform: ProcessPlatform) -> NodeEnd:
    """The next one."""
    async with asyncio.timeout(DEADLINE_S):
        return await anext(processes_platform.node_ends())


def test_a_node_and_what_it_starts_run_near_its_devices(
    tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as this process may run there."""
    near = min(os.sched_getaffinity(0))
    monkeypatch.setattr(process, "near_cpus", lambda names: {near, 100_000} if names == ["7"] else set[int]())
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], *os.sched_getaffinity(0), flush=True)"

    async def story() -> None:
        platform = ProcessPlatform(tmp_path, job, (sys.executable, "-c", code), devices=("3", "7"))
        await platform.create(NodeRequest("worker-0-0", "worker", "local-0", {}, [], workers=(1, 1)))
        await next_gone(platform)

    asyncio.run(story())
    assert (tmp_path / "logs" / job / "worker-0-0.log").read_text() == f"7 {near}\n"


def test_create_twice_makes_one_node(tmp_path: Path, job: str) -> None:
    async def story() -> None:
        processes_platform = platform(tmp_path, job)
        first, second = await processes_platform.create(request()), await processes_platform.create(request())
        assert first == second
        assert await processes_platform.observe() == [first]
        await runs(tmp_path)
        assert len(list(debris.processes_of(job, "worker-0-0"))) == 1

    asyncio.run(story())


def test_without_a_descriptor_left_a_living_node_is_not_taken_for_dead(
    tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        refused_calls.append(1)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def story() -> None:
        first = await platform(tmp_path, job).create(request())
        await runs(tmp_path)
        another = platform(tmp_path, job)
        with monkeypatch.context() as none_left:
            none_left.setattr(Path, "read_text", refuse)  # Of /proc/PID/stat.
            with pytest.raises(OSError, match="Too many open files"):
                await another.observe()
            assert len(refused_calls) == 1
        monkeypatch.setattr(process, "_SHORT_S", 0.01)
        with monkeypatch.context() as none_left:
            none_left.setattr(os, "pidfd_open", refuse)
            assert await another.observe() == [first]
            while len(refused_calls) < 3:  # Its watch begins again and again.
                await asyncio.sleep(0)
        await another.delete(first.name, first.uid)
        assert (await next_gone(another)).name == first.name

    refused_calls: list[int] = []
    asyncio.run(story())


def test_a_node_gets_its_environment_and_its_log(tmp_path: Path, job: str) -> None:
    code = "import os, sys; print(os.environ['COLOUR'], os.environ['EVERSTEP_RUN_DIR'], sys.argv[1:], os.read(0, 1))"

    async def story() -> None:
        processes_platform = platform(tmp_path, job, code)
        await processes_platform.create(request())
        assert (await next_gone(processes_platform)).exit_code == 0
        assert (tmp_path / "logs" / job / "worker-0-0.log").read_text() == f"green {tmp_path} ['--flag'] b''\n"
        assert await processes_platform.observe() == []

    asyncio.run(story())


def test_nodes_of_two_jobs_that_run_at_once_write_logs_of_their_own(tmp_path: Path, job: str) -> None:
    jobs = (job, f"{job}-2")

    async def story() -> None:
        platforms = [platform(tmp_path, name, "import os; print(os.environ['EVERSTEP_JOB'])") for name in jobs]
        for each in platforms:
            await each.create(request())
        for each in platforms:
            assert (await next_gone(each)).exit_code == 0
        assert [(tmp_path / "logs" / name / "worker-0-0.log").read_text() for name in jobs] == [f"{j}\n" for j in jobs]

    asyncio.run(story())


def test_a_second_platform_adopts_the_nodes_and_sees_their_end(tmp_path: Path, job: str) -> None:
    async def first() -> str:
        return (await platform(tmp_path, job).create(request())).uid

    async def second(uid: str) -> None:
        processes_platform = platform(tmp_path, job)
        (node,) = await processes_platform.observe()
        assert node.uid == uid
        assert await processes_platform.create(request()) == node
        os.kill(int(uid.partition("-")[0]), signal.SIGKILL)
        assert (await next_gone(processes_platform)).uid == uid

    asyncio.run(second(asyncio.run(first())))


def test_a_dead_node_is_there_until_its_end_is_told(tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaning, may_clean, clean = threading.Event(), threading.Event(), debris.remove_debris

    def clean_later(*clean_arguments: Any) -> None:
        cleaning.set()
        assert may_clean.wait(DEADLINE_S)
        clean(*clean_arguments)

    monkeypatch.setattr(debris, "remove_debris", clean_later)

    async def story() -> None:
        processes_platform = platform(tmp_path, job)
        node = await processes_platform.create(request())
        try:
            os.kill(int(node.uid.partition("-")[0]), signal.SIGKILL)
            await until(cleaning.is_set)
            assert await processes_platform.observe() == [node]
            deleting = asyncio.create_task(processes_platform.delete(node.name, node.uid))
            await asyncio.sleep(0)
            assert not deleting.done()
        finally:
            may_clean.set()
        assert (await next_gone(processes_platform)).uid == node.uid
        assert await processes_platform.observe() == []
        await deleting

    asyncio.run(story())


def test_a_node_that_is_killed_leaves_neither_processes_nor_memory(tmp_path: Path, job: str) -> None:
    async def story() -> None:
        processes_platform = platform(tmp_path, job, WITH_A_CHILD)
        node = await processes_platform.create(request())
        memory = debris.SHARED_MEMORY / f"{debris.memory_prefix(job, 'worker-0-0')}0"
        memory.write_bytes(b"x")
        await until(lambda: len(list(debris.processes_of(job, "worker-0-0"))) == 2)
        os.kill(int(node.uid.partition("-")[0]), signal.SIGKILL)
        node_end = await next_gone(processes_platform)
        assert (node_end.exit_code, "SIGKILL" in node_end.reason) == (-9, True)
        assert list(debris.processes_of(job, "worker-0-0")) == []
        assert not memory.exists()
        assert list((tmp_path / "nodes").rglob("*.json")) == []

    asyncio.run(story())


def test_a_nodes_end_is_told_although_what_it_left_cannot_be_removed(
    tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted", "/dev/shm/x")

    monkeypatch.setattr(debris, "remove_memory", refuse)
    lines_said: list[str] = []

    async def story() -> None:
        processes_platform = ProcessPlatform(tmp_path, job, ("/bin/sh", "-c", "exit 3"), say=lines_said.append)
        node = await processes_platform.create(request())
        assert await next_gone(processes_platform) == NodeEnd(
            "worker-0-0", node.uid, 3, "its agent ended with exit code 3"
        )
        assert await processes_platform.observe() == []

    asyncio.run(story())
    (line,) = [line for line in lines_said if "limited" not in line]
    beginning = "node worker-0-0 has ended, but some of what it left cannot be removed: "
    assert line == f"{beginning}[Errno 1] Operation not permitted: '/dev/shm/x'"


async def until(true: object) -> None:
    """Until it is; fails at the deadline."""
    assert callable(true)
    async with asyncio.timeout(DEADLINE_S):
        while not true():
            await asyncio.sleep(0)


def test_delete_ends_that_incarnation_only_and_may_be_repeated(tmp_path: Path, job: str) -> None:
    async def story() -> None:
        processes_platform = platform(tmp_path, job, WITH_A_CHILD)
        node = await processes_platform.create(request())
        await processes_platform.delete(node.name, "1-1")
        assert await processes_platform.observe() == [node]
        await processes_platform.delete(node.name, node.uid)
        await processes_platform.delete(node.name, node.uid)
        assert await processes_platform.observe() == []
        assert list(debris.processes_of(job, "worker-0-0")) == []

    asyncio.run(story())


def test_a_process_in_the_midst_of_an_exec_is_read_again_and_a_thread_of_the_kernel_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    def finish(seconds: float) -> None:
        paused.append(seconds)
        (tmp_path / "7/environ").write_bytes(b"EVERSTEP_JOB=j\0EVERSTEP_NODE=worker-0-0\0")

    for pid in (7, 8):
        (tmp_path / f"{pid}").mkdir()
        (tmp_path / f"{pid}/environ").touch()
        (tmp_path / f"{pid}/stat").write_text(f"{pid} (sh) S {' '.join(map(str, range(20)))}")
    (tmp_path / "7/exe").symlink_to("/bin/sh")
    monkeypatch.setattr(processes, "_PROCESSES", tmp_path)
    monkeypatch.setattr(time, "sleep", finish)
    assert list(debris.processes_of("j", "worker-0-0")) == [7]
    assert len(paused) == 1


def test_end_nodes_ends_every_job_of_the_run_and_names_them(tmp_path: Path, job: str) -> None:
    async def story() -> None:
        for name in ("worker-0-0", "worker-1-0"):
            await platform(tmp_path, job, WITH_A_CHILD).create(request(name))

    asyncio.run(story())
    assert end_nodes(tmp_path) == ["worker-0-0", "worker-1-0"]
    assert end_nodes(tmp_path) == []
    assert list(debris.processes_of(job, "worker-0-0")) == []


def test_jobs_of_one_run_that_train_at_once_have_nodes_of_the_same_names(tmp_path: Path, job: str) -> None:
    async def story() -> None:
        one, other = platform(tmp_path, job), platform(tmp_path, f"{job}-2")
        nodes = [await each.create(request()) for each in (one, other)]
        assert len({node.uid for node in nodes}) == 2
        assert [await each.observe() for each in (one, other)] == [[node] for node in nodes]
        await one.delete("worker-0-0", nodes[0].uid)
        assert await other.observe() == [nodes[1]]

    asyncio.run(story())
    assert end_nodes(tmp_path) == ["worker-0-0"]


def test_a_pid_that_another_process_has_now_is_never_killed(tmp_path: Path, job: str) -> None:
    other = subprocess.Popen(["sleep", "1000"])
    try:
        began = processes.start_time(other.pid)
        assert began
        registry_of(tmp_path, job).put(Registration("worker-0-0", job, "worker", "", other.pid, began - 1, 0.0))
        assert asyncio.run(platform(tmp_path, job).observe()) == []
        assert end_nodes(tmp_path) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_node_whose_maker_dies_before_it_is_registered_ends(tmp_path: Path) -> None:
    from everstep.runtime.platform import process

    waits = subprocess.Popen(
        ["/bin/sh", "-c", process._GATE, "x", "touch", str(tmp_path / "ran")], stdin=subprocess.PIPE
    )
    assert waits.stdin
    waits.stdin.close()
    assert waits.wait(timeout=DEADLINE_S) != 0
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x"])
def test_a_name_that_is_a_path_is_refused(tmp_path: Path, job: str, name: str) -> None:
    with pytest.raises(ValueError, match="not a node's name"):
        asyncio.run(platform(tmp_path, job).create(request(name)))
