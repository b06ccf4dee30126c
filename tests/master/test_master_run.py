"""A real master over real HTTP on loopback; agents that only speak, nodes that exist only in a dict."""

import asyncio
import errno
import json
import os
import resource
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
import pytest

from everstep.runtime.chaos import store_outage
from everstep.runtime.job.reasons import Reason
from everstep.runtime.job.records import FaultJudged, NodeLost, NodeRequested, RoundFormed
from everstep.runtime.job.spec import JobSpec, Patience, Resources, RoleSpec
from everstep.runtime.journal.journal import Master
from everstep.runtime.master import (
    AgentCommand,
    CannotListen,
    Control,
    ListenAddress,
    Outcome,
    Progress,
    find_master,
    read_journal,
    run,
)
from everstep.runtime.net.tls import Credentials
from everstep.runtime.platform import Node, NodeEnd, NodeRequest
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Ack, Action, Directive, Finished, Heartbeat, Join, Persisted, WorkerExit
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.store import DirectoryStore, StoreError
from tests.harness import PATIENCE_S

PATIENCE = Patience(join_window_s=PATIENCE_S, replacement_wait_s=PATIENCE_S, silence_s=PATIENCE_S, leave_s=PATIENCE_S)
"""Nothing happens here because a time is over, however slow the machine is."""
SPEC = JobSpec("j", {"worker": RoleSpec(2, 1)}, PATIENCE)
TOKEN = secrets.token_hex(8)
"""Of this process: no other test's agents are let in."""
M = TypeVar("M")


class DictPlatform:
    """Nodes in a dict; `kill` is what a machine's death looks like."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.requests: dict[str, NodeRequest] = {}
        self.came: asyncio.Queue[str] = asyncio.Queue()
        self.looks = 0
        self._gone: asyncio.Queue[NodeEnd] = asyncio.Queue()

    async def observe(self) -> list[Node]:
        self.looks += 1
        return list(self.nodes.values())

    async def create(self, request: NodeRequest) -> Node:
        self.requests[request.name] = request
        node = self.nodes.setdefault(request.name, Node(request.name, f"{request.name}@1", request.role, request.host))
        self.came.put_nowait(request.name)
        return node

    async def delete(self, name: str, uid: str) -> None:
        self.kill(name)

    def kill(self, name: str) -> None:
        if node := self.nodes.pop(name, None):
            self.tell(node)

    def tell(self, node: Node, exit_code: int | None = None) -> None:
        self._gone.put_nowait(NodeEnd(node.name, node.uid, exit_code, "killed"))

    async def node_ends(self) -> AsyncIterator[NodeEnd]:
        while True:
            yield await self._gone.get()


class WatchedStore(DirectoryStore):
    """Tells of each new object."""

    def __init__(self, directory: Path, report_progress: Callable[[], object]) -> None:
        super().__init__(directory)
        self._told = report_progress

    def create(self, key: str, data: bytes) -> bool:
        try:
            return super().create(key, data)
        finally:
            self._told()


class Agent:
    """What an agent says, without workers."""

    def __init__(self, session: aiohttp.ClientSession, address: str, name: str, scheme: str = "http") -> None:
        self.session, self.address, self.name, self.scheme = session, address, name, scheme

    async def post(self, verb: str, message: Any, token: str = TOKEN) -> tuple[int, bytes]:
        body = message if isinstance(message, bytes) else msgspec.json.encode(message)
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.post(f"{self.scheme}://{self.address}/v1/{verb}", data=body, headers=headers) as answer:
            return answer.status, await answer.read()

    async def ask(self, verb: str, message: Any, kind: type[M]) -> M:
        status, body = await self.post(verb, message)
        assert status == 200, (status, body)
        return msgspec.json.decode(body, type=kind)

    async def join(self, after: int = 0, holdings: tuple[Holding, ...] = ()) -> Seat:
        join = Join(self.name, "worker", "h", 1, "127.0.0.1:7", 29500, holdings, after, number=after + 1)
        return await self.ask("join", join, Seat)

    async def beat(self, round_: int, seen_number: int) -> Directive:
        return await self.ask("heartbeat", Heartbeat(self.name, round_, seen=seen_number), Directive)

    async def wait_for_directive(self, action: Action, round_: int = 0) -> Directive:
        """Heartbeats until the master says so."""
        last_number = 0
        while True:
            directive = await self.beat(round_, last_number)
            last_number = directive.number
            if directive.action is action:
                return directive


class Job:
    """One master and its surroundings."""

    def __init__(
        self, folder: Path, session: aiohttp.ClientSession, spec: JobSpec = SPEC, platform: DictPlatform | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        self._created = asyncio.Event()
        self.store = WatchedStore(folder, lambda: loop.call_soon_threadsafe(self._created.set))
        self.platform = platform or DictPlatform()
        self.session = session
        self.spec = spec
        self.progress: list[Progress] = []
        self.begin()

    def begin(self, remove: bool = True) -> None:
        self.stop = asyncio.Event()
        self.task: asyncio.Task[Outcome] = asyncio.create_task(
            run(
                self.spec, self.store, self.platform, Credentials(TOKEN), AgentCommand(["--", "x.py"]),
                Control(self.stop, lambda: remove, on_progress=self.progress.append),
            )
        )  # fmt: skip

    async def master(self, epoch: int) -> Master:
        """The master of that epoch, once it has claimed the job."""
        while (address := find_master(self.store, self.spec.job)) is None or address.epoch < epoch:
            await self._created.wait()
            self._created.clear()
        return address

    async def agent(self) -> Agent:
        """The next node that the platform made."""
        name = await self.platform.came.get()
        master = find_master(self.store, self.spec.job)
        assert master is not None
        return Agent(self.session, master.address, name)


def play(folder: Path, story: Callable[[Job], Any], spec: JobSpec = SPEC, platform: DictPlatform | None = None) -> Any:
    """Run the story against a fresh job, with a deadline."""

    async def play() -> Any:
        async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
            job = Job(folder, session, spec, platform)
            try:
                return await story(job)
            finally:
                job.task.cancel()
                await asyncio.gather(job.task, return_exceptions=True)

    return asyncio.run(play())


async def _two(job: Job) -> tuple[Agent, Agent, Seat, Seat]:
    first, second = await job.agent(), await job.agent()
    one, two = await asyncio.gather(first.join(), second.join())
    return first, second, one, two


async def _finish(job: Job, round_: int, *agents: Agent) -> Outcome:
    for agent in agents:
        await agent.ask("finished", Finished(agent.name, round_), Ack)
    for agent in agents:
        await agent.wait_for_directive(Action.LEAVE, round_)
        job.platform.kill(agent.name)
    return await job.task


class ShortOfFiles(DictPlatform):
    """What looks at its nodes needs a descriptor, which it does not always get."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    async def observe(self) -> list[Node]:
        if self.looks % 2 == 0:
            self.looks += 1
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await super().observe()


def test_a_master_without_a_descriptor_left_looks_again_and_tells_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("everstep.runtime.master.reconcile.RECONCILE_INTERVAL_S", 0.01)
    platform = ShortOfFiles()

    async def story(job: Job) -> None:
        first, second, *_ = await _two(job)
        assert (await _finish(job, 1, first, second)).state == "succeeded"

    play(tmp_path, story, platform=platform)
    assert platform.refused > 2
    assert caplog.text.count("nodes cannot be created or deleted now: Too many open files") == 1


class ShortOfProcesses(DictPlatform):
    """Nodes cannot be created for a while; how often each was tried."""

    def __init__(self, error: int) -> None:
        super().__init__()
        self.error = error
        self.tried: list[str] = []

    async def create(self, request: NodeRequest) -> Node:
        self.tried.append(request.name)
        if len(self.tried) <= 20:
            raise OSError(self.error, os.strerror(self.error))
        return await super().create(request)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM, errno.EAGAIN])
def test_a_node_that_cannot_be_created_for_a_shortage_is_tried_again_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    monkeypatch.setattr("everstep.runtime.master.reconcile.RECONCILE_INTERVAL_S", 0.01)
    platform = ShortOfProcesses(error)

    async def story(job: Job) -> None:
        both = asyncio.create_task(_two(job))
        await asyncio.wait([both, job.task], return_when=asyncio.FIRST_COMPLETED)
        assert both.done(), "the job has ended without them"
        first, second, *_ = both.result()
        assert (await _finish(job, 1, first, second)).state == "succeeded"
        assert not [record for record in read_journal(job.store, "j") if isinstance(record, FaultJudged)]

    play(tmp_path, story, platform=platform)
    assert platform.tried == ["worker-0-0"] * 21 + ["worker-1-0"], "the extra node comes after those of the minimum"
    assert caplog.text.count(f"nodes cannot be created or deleted now: {os.strerror(error)}") == 1


def test_a_master_that_begins_while_its_store_cannot_be_reached_waits_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(job: Job) -> None:
        first, second, *_ = await _two(job)
        job.task.cancel()
        await asyncio.gather(job.task, return_exceptions=True)
        with store_outage.out_of_reach(tmp_path / "jobs" / SPEC.job) as why:
            assert "every write below it fails" in why
            job.begin()
            while "the job's journal: the store fails, retrying: " not in caplog.text:
                await asyncio.sleep(0.01)
            assert not job.task.done()
        first.address = second.address = (await job.master(2)).address
        assert (await _finish(job, 1, first, second)).state == "succeeded"
        assert "the job's journal: the store works again" in caplog.text

    play(tmp_path, story)


def test_a_master_that_waits_for_its_store_can_be_stopped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(job: Job) -> None:
        await job.master(1)
        job.task.cancel()
        await asyncio.gather(job.task, return_exceptions=True)
        with store_outage.out_of_reach(tmp_path / "jobs" / SPEC.job):
            job.begin()
            while "the job's journal: the store fails, retrying: " not in caplog.text:
                await asyncio.sleep(0.01)
            job.stop.set()
            with pytest.raises(StoreError):
                await job.task

    play(tmp_path, story)


def test_two_nodes_join_get_their_seats_and_finish(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        first, second, one, two = await _two(job)
        assert (one.round, one.world_size, two.world_size) == (1, 2, 2)
        assert {one.first_rank, two.first_rank} == {0, 1}
        assert [one.persists, two.persists].count(True) == 1
        assert job.platform.requests[first.name].environment["EVERSTEP_JOB_TOKEN"] == TOKEN
        outcome = await _finish(job, 1, first, second)
        assert (outcome.state, outcome.exit_code) == ("succeeded", 0)
        assert not job.platform.nodes

    play(tmp_path, story)


def test_a_workers_death_leads_to_a_new_round_from_memory(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        first, second, _, _ = await _two(job)
        polling = asyncio.create_task(second.wait_for_directive(Action.REJOIN, 1))
        await first.ask("fault", WorkerExit(first.name, 1, 0, 0, -9, 5), Ack)
        assert (await polling).round == 1
        holdings_held = [(Holding(1, 5, node=agent.name, address="127.0.0.1:7"),) for agent in (first, second)]
        one, two = await asyncio.gather(first.join(1, holdings_held[0]), second.join(1, holdings_held[1]))
        assert (one.round, two.round, one.restart_count) == (2, 2, 1)
        assert one.restore is not None
        assert one.restore == two.restore
        assert (one.restore.round, one.restore.iteration) == (1, 5)
        assert (await _finish(job, 2, first, second)).state == "succeeded"

    play(tmp_path, story)


def test_a_lost_node_is_replaced_and_the_survivor_told_to_rejoin(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        first, second, _, _ = await _two(job)
        job.platform.kill(second.name)
        await first.wait_for_directive(Action.REJOIN, 1)
        fresh = await job.agent()
        assert fresh.name == second.name[:-1] + "1"
        one, two = await asyncio.gather(first.join(1), fresh.join())
        assert (one.round, two.round, two.world_size) == (2, 2, 2)
        requested = [r for r in read_journal(job.store, "j") if isinstance(r, NodeRequested)]
        assert requested[-1].replaces == second.name
        assert (await second.post("heartbeat", Heartbeat(second.name, 1)))[0] == 200
        assert (await second.post("join", Join(second.name, "worker", "h", 1, "a:1", 1)))[0] == 409

    play(tmp_path, story)


def test_why_a_node_ended_is_known_although_its_absence_was_seen_first(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        _, second, _, _ = await _two(job)
        dying, looks = job.platform.nodes.pop(second.name), job.platform.looks
        while job.platform.looks < looks + 2:
            await asyncio.sleep(0.01)
        assert not [r for r in read_journal(job.store, "j") if isinstance(r, NodeLost)]
        job.platform.tell(dying, exit_code=201)
        await job.agent()
        (judged,) = [r for r in read_journal(job.store, "j") if isinstance(r, FaultJudged)]
        assert (judged.node, judged.reason) == (second.name, Reason.HARDWARE)

    play(tmp_path, story)


def test_the_platform_is_told_what_each_node_may_use_and_who_is_beyond_the_minimum(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        first, second = await job.agent(), await job.agent()
        await asyncio.gather(first.join(), second.join())
        node_requests = job.platform.requests["worker-0-0"], job.platform.requests["worker-1-0"]
        assert [(request.resources, request.priority, request.extra) for request in node_requests] == [
            (resources, 5, False),
            (resources, 5, True),
        ]
        died = WorkerExit(second.name, 1, 1, 0, -9, 0, "", 1.0, oom=True)
        await second.ask("fault", died, Ack)
        assert await job.platform.came.get() == "worker-1-1"
        assert job.platform.requests["worker-1-1"].resources == Resources(2.0, 8 << 30)

    resources = Resources(2.0, 4 << 30)
    play(tmp_path, story, JobSpec("j", {"worker": RoleSpec(2, 1, resources=resources, priority=5)}, PATIENCE))


def test_nodes_beyond_the_minimum_are_made_when_all_others_are_there(tmp_path: Path) -> None:
    class Slow(DictPlatform):
        found: int = -1

        async def create(self, request: NodeRequest) -> Node:
            if request.extra:
                self.found = len(self.nodes)
            for _ in range(5):
                await asyncio.sleep(0)
            return await super().create(request)

    async def story(job: Job) -> None:
        for _ in range(4):
            await job.agent()
        assert slow.found == 3

    slow = Slow()
    play(tmp_path, story, JobSpec("j", {"worker": RoleSpec(4, 3)}, PATIENCE), slow)


def test_a_second_master_takes_over_without_disturbing_the_round(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        first, second, _, _ = await _two(job)
        job.task.cancel()
        await asyncio.gather(job.task, return_exceptions=True)
        job.begin()
        master = await job.master(2)
        for agent in (first, second):
            agent.address = master.address
            directive = await agent.ask("heartbeat", Heartbeat(agent.name, 1, telemetry=({"iteration": 1},)), Directive)
            assert (directive.epoch, directive.action) == (2, Action.CONTINUE)
        assert (await _finish(job, 1, first, second)).state == "succeeded"
        assert sum(isinstance(r, RoundFormed) for r in read_journal(job.store, "j")) == 1

    play(tmp_path, story)


def test_an_older_master_that_writes_again_is_fenced(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        first, second, _, _ = await _two(job)
        zombie = job.task
        job.begin()
        await job.master(2)
        posting = asyncio.create_task(first.post("finished", Finished(first.name, 1)))
        outcome = await zombie
        posting.cancel()
        await asyncio.gather(posting, return_exceptions=True)
        assert (outcome.state, outcome.exit_code) == ("fenced", 75)
        assert set(job.platform.nodes) == {first.name, second.name}

    play(tmp_path, story)


def test_a_wrong_token_and_malformed_bodies_are_refused_by_name(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        agent = await job.agent()
        assert (await agent.post("heartbeat", Heartbeat(agent.name, 0), token="wrong"))[0] == 401
        status, body = await agent.post("join", b'{"node": "worker-0-0", "role": 7}')
        assert (status, b"$.role" in body) == (400, True)
        assert (await agent.post("join", b"not json"))[0] == 400
        assert (await agent.post("fault", b" " * (2 << 20)))[0] == 400
        assert (await agent.post("heartbeat", Heartbeat("worker-9-9", 0)))[0] == 409
        status, body = await agent.post("scale", {"role": "worker", "nodes": 5})
        assert (status, b"nodes" in body) == (400, True)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with job.session.get(f"http://{agent.address}/v1/status", headers=headers) as answer:
            assert (await answer.json())["refused"]["unauthorized"] == 1

    play(tmp_path, story)


def test_a_persisted_shard_is_answered_with_its_committed_manifest(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        first, second, _, _ = await _two(job)
        key = "jobs/j/checkpoints/000001-000000004/rank-00000.safetensors"
        holding = Holding(1, 4, size=3, key=key, digest="d" * 32)
        acks = [await first.ask("persisted", Persisted(first.name, holding), Ack) for _ in range(2)]
        assert {ack.committed for ack in acks} == {"jobs/j/checkpoints/000001-000000004/manifest.json"}
        manifest = json.loads(job.store.get(acks[0].committed))
        assert (manifest["world_size"], manifest["objects"][0]["key"]) == (2, key)
        outcome = await _finish(job, 1, first, second)
        assert outcome.checkpoint == "jobs/j/checkpoints/000001-000000004"

    play(tmp_path, story)


def test_a_stopped_master_may_leave_its_nodes_training(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        job.task.cancel()
        await asyncio.gather(job.task, return_exceptions=True)
        job.begin(remove=False)
        await _two(job)
        job.stop.set()
        assert (await job.task).state == "stopped"
        assert len(job.platform.nodes) == 2
        assert not [r for r in read_journal(job.store, "j") if type(r).__name__ == "JobEnded"]

    play(tmp_path, story)


def test_a_stopped_job_removes_its_nodes_and_can_be_taken_up_again(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        await _two(job)
        job.stop.set()
        assert (await job.task).exit_code == 143
        assert not job.platform.nodes
        job.begin()
        first, second = await job.agent(), await job.agent()
        one, _ = await asyncio.gather(first.join(), second.join())
        assert one.round == 2
        assert first.name.endswith("-1")

    play(tmp_path, story, JobSpec("j", {"worker": RoleSpec(2, 1)}, Patience(leave_s=0.2)))


def test_an_address_that_is_taken_is_refused_in_one_line(tmp_path: Path) -> None:
    async def begin(port: int) -> None:
        store, platform = DirectoryStore(tmp_path), DictPlatform()
        await run(
            SPEC,
            store,
            platform,
            Credentials(TOKEN),
            AgentCommand(),
            Control(asyncio.Event()),
            ListenAddress(port=port),
        )

    with socket.create_server(("127.0.0.1", 0)) as busy_socket:
        port = busy_socket.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"^cannot listen on 127.0.0.1:{port}: Address already in use; .*$"):
            asyncio.run(begin(port))
    assert find_master(DirectoryStore(tmp_path), "j") is None, "nothing was claimed"


def test_a_master_at_an_ipv6_address_announces_one_that_nodes_can_connect_to(tmp_path: Path) -> None:
    async def story() -> None:
        store, platform, control = DirectoryStore(tmp_path), DictPlatform(), Control(asyncio.Event())
        master = asyncio.create_task(
            run(SPEC, store, platform, Credentials(TOKEN), AgentCommand(), control, ListenAddress("::1"))
        )
        try:
            async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
                names = [await platform.came.get() for _ in range(2)]
                announced = find_master(store, "j")
                assert announced is not None
                assert announced.address.startswith("[::1]:")
                url = platform.requests[names[0]].environment["EVERSTEP_MASTER"]
                assert url == f"http://{announced.address}"
                seats = [Agent(session, announced.address, name).join() for name in names]
                assert [seat.round for seat in await asyncio.gather(*seats)] == [1, 1]
        finally:
            master.cancel()
            await asyncio.gather(master, return_exceptions=True)

    asyncio.run(story())


def test_more_nodes_than_this_process_may_have_files_are_refused_with_the_arithmetic(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("this process may open any number of files")
    spec = JobSpec("j", {"worker": RoleSpec(hard, 1)})

    async def begin() -> None:
        store, platform = DirectoryStore(tmp_path), DictPlatform()
        await run(spec, store, platform, Credentials(TOKEN), AgentCommand(), Control(asyncio.Event()))

    with pytest.raises(CannotListen, match=f"{hard} nodes need .* may have {hard}; raise the limit"):
        asyncio.run(begin())
