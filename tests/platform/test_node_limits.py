"""What a node of this machine may use: control groups where they can be made, else a word that nobody limits it."""

import asyncio
import hashlib
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.runtime.job.spec import Resources
from everstep.runtime.platform import Node, NodeEnd, NodeRequest, limits
from everstep.runtime.platform.process import ProcessPlatform, end_nodes
from everstep.runtime.platform.registry import Registration, registry_of
from tests.memory_groups import memory_group, write_listing

DEADLINE_S = 30
SLEEPS = "import threading; threading.Event().wait()"
EATS = "held = [bytearray(1 << 20) for _ in range(400)]"
NODE = "worker-0-0"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[str]:
    """A job's name; its nodes are ended."""
    yield f"test-{uuid.uuid4().hex[:8]}"
    end_nodes(tmp_path)


def request(resources: Resources, name: str = NODE, extra: bool = False) -> NodeRequest:
    return NodeRequest(name, "worker", "local-0", {}, [], resources, extra=extra)


async def next_gone(processes_platform: ProcessPlatform) -> NodeEnd:
    async with asyncio.timeout(DEADLINE_S):
        return await anext(processes_platform.node_ends())


def test_a_node_that_takes_more_memory_than_it_may_is_killed_and_that_is_told(tmp_path: Path, job: str) -> None:
    async def story(own: Path) -> NodeEnd:
        lines_said: list[str] = []
        command = (sys.executable, "-c", EATS)
        processes_platform = ProcessPlatform(tmp_path / "run", job, command, say=lines_said.append, own_groups=own)
        await processes_platform.create(request(Resources(memory_bytes=64 << 20)))
        exit_event = await next_gone(processes_platform)
        assert lines_said == []
        return exit_event

    with memory_group(500 << 20) as group:
        exit_event = asyncio.run(story(write_listing(group, tmp_path / "own")))
        assert [path for path in group.iterdir() if path.is_dir()] == [], "the node's group is gone with it"
    assert (exit_event.exit_code, exit_event.reason) == (247, "its agent was killed: the node ran out of memory")


def test_what_nobody_limits_is_said_once_for_all_nodes_of_a_role(tmp_path: Path, job: str) -> None:
    lines_said: list[str] = []

    async def story() -> None:
        processes_platform = ProcessPlatform(
            tmp_path, job, (sys.executable, "-c", SLEEPS), say=lines_said.append, own_groups=tmp_path / "none"
        )
        resources = Resources(1.0, 1 << 30, {"nvidia.com/gpu": 1.0})
        for name in (NODE, "worker-1-0"):
            await processes_platform.create(request(resources, name))

    asyncio.run(story())
    assert lines_said == [
        "worker nodes are not limited in nvidia.com/gpu, memory, cpu: this process cannot do so on this machine"
    ]


def test_nodes_beyond_the_minimum_are_the_first_that_a_machine_out_of_memory_ends(tmp_path: Path, job: str) -> None:
    async def story() -> list[str]:
        processes_platform = ProcessPlatform(tmp_path, job, (sys.executable, "-c", SLEEPS))
        nodes = [await processes_platform.create(request(Resources(), f"worker-{n}-0", extra=n > 0)) for n in range(2)]
        pids = [node.uid.partition("-")[0] for node in nodes]
        return [Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in pids]

    mine = Path("/proc/self/oom_score_adj").read_text().strip()
    assert asyncio.run(story()) == [mine, "500"]


GIB = Resources(0.5, 1 << 30)
V1 = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cgroup.procs")
V2 = ("memory.max", "memory.swap.max", "cpu.max", "cgroup.procs", "cgroup.subtree_control")


def files(folder: Path, names: tuple[str, ...], text: str = "") -> None:
    """A group as the kernel shows it, as far as this reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(text)


def limit(tmp_path: Path, own: str) -> tuple[list[str], tuple[str, ...]]:
    (tmp_path / "own").write_text(own)
    mount = tmp_path / "fs"
    groups, unlimited = limits.limit("j", NODE, GIB, 1234, tmp_path / "own", mount)
    return [str(group.relative_to(mount)) for group in groups], unlimited


def name() -> str:
    return f"everstep-{hashlib.sha256(b'j').hexdigest()[:12]}-{NODE}"


def test_under_v1_each_controller_has_a_group_below_the_makers(tmp_path: Path) -> None:
    for place in (f"memory/x/{name()}", f"cpu/{name()}"):
        files(tmp_path / "fs" / place, V1)
    groups, unlimited = limit(tmp_path, "4:memory:/x\n1:cpu,cpuacct:/seen/outside\n0::/\n")
    assert (groups, unlimited) == ([f"memory/x/{name()}", f"cpu/{name()}"], ())
    memory, cpu = (tmp_path / "fs" / group for group in groups)
    assert (memory / "memory.limit_in_bytes").read_text() == f"{1 << 30}"
    assert (cpu / "cpu.cfs_quota_us").read_text() == "50000"
    assert (memory / "cgroup.procs").read_text() == "1234"


def test_under_v2_the_group_lies_below_the_makers(tmp_path: Path) -> None:
    files(tmp_path / "fs/a/b", V2)
    files(tmp_path / "fs/a/b" / name(), V2)
    assert limit(tmp_path, "0::/a/b\n") == ([f"a/b/{name()}"], ())
    assert (tmp_path / f"fs/a/b/{name()}/memory.max").read_text() == f"{1 << 30}"
    assert (tmp_path / f"fs/a/b/{name()}/cpu.max").read_text() == "50000 100000"


def test_it_lies_beside_a_maker_that_has_no_controller_to_give_and_no_limit(tmp_path: Path) -> None:
    files(tmp_path / "fs/a/b", V2, "max 100000\n")
    files(tmp_path / "fs/a" / name(), V2)
    assert limit(tmp_path, "0::/a/b\n") == ([f"a/{name()}"], ())


def test_no_node_escapes_what_limits_its_maker(tmp_path: Path) -> None:
    files(tmp_path / "fs/a/b", V2, "500 1000\n")
    files(tmp_path / "fs/a" / name(), V2)
    assert limit(tmp_path, "0::/a/b\n") == ([], ("memory", "cpu"))
    assert (tmp_path / f"fs/a/{name()}/cgroup.procs").read_text() == "", "untouched"


def test_a_dead_nodes_group_goes_when_the_last_process_in_it_has_ended_whoever_is_the_master(
    tmp_path: Path, job: str
) -> None:
    group, still_used = tmp_path / "group", tmp_path / "group" / "process"
    still_used.mkdir(parents=True)
    registry = registry_of(tmp_path, job)
    registry.put(Registration(NODE, job, "worker", "local-0", 1, 1, 1.0, (str(group),)))

    async def look() -> tuple[list[Node], int]:
        """As a new master does."""
        return await ProcessPlatform(tmp_path, job).observe(), len(list(registry.all()))

    assert asyncio.run(look()) == ([], 1)
    still_used.rmdir()
    assert asyncio.run(look()) == ([], 0)
    assert not group.exists()
