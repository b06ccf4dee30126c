"""The worker link: what a worker may tell without waiting for the answer, and what of it counts."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import msgspec
import pytest

from everstep.runtime.agent.client import NotUnderstood
from everstep.runtime.agent.worker_server import LONGEST_LINE, LinkHandlers, LinkServer
from everstep.runtime.protocol.keeper import Keeper
from everstep.runtime.protocol.messages import ShardLease, ShardRequest
from everstep.runtime.protocol.worker_link import (
    Acquire,
    Done,
    Hello,
    Link,
    LinkError,
    Problem,
    Slot,
    Staged,
    TakenShard,
    TakeShard,
    Welcome,
)
from tests.fake_agent import seat


class Agent:
    """The agent's end, with a keeper that notes what it is told."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.keeper: Any = create_autospec(Keeper, instance=True, spec_set=True)
        self.keeper.expected_range.return_value = None
        self.keeper.try_acquire.return_value = Slot(1, 4096, 0.0)
        self._threads = ThreadPoolExecutor(1)
        welcome = Welcome("job", "store")

        def ignore(*_: object) -> None: ...

        handlers = LinkHandlers(ignore, ignore, ignore, self.ask_shard, ignore)
        self.server = LinkServer("worker-0-0", self.keeper, welcome, 1, self._threads, handlers)
        self.asked: list[ShardRequest] = []
        self.leases: list[ShardLease | Exception | None] = []
        """What the master answers, in turn."""

    async def ask_shard(self, request: ShardRequest) -> ShardLease | None:
        self.asked.append(request)
        lease = self.leases.pop(0)
        if isinstance(lease, Exception):
            raise lease
        return lease

    async def begin(self) -> None:
        await self.server.open(Path(self.path))
        self.server.begin_round(seat(1))

    async def worker(self) -> Link:
        """Greeted."""
        return await asyncio.to_thread(Link, self.path, Hello(1, 0, 0, 1))

    def staged(self) -> list[Staged]:
        return [call.args[1] for call in self.keeper.commit_stage.call_args_list]


def stage(iteration: int) -> Staged:
    return Staged(0, iteration, 10, persist=False)


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path / "link")


def test_what_was_staged_when_its_round_ends_counts_whatever_comes_of_the_worker(agent: Agent) -> None:
    async def run() -> None:
        await agent.begin()
        link = await agent.worker()
        link.tell(stage(7))
        link.close()  # As a killed worker's, before the agent has read anything.
        agent.server.end_round()
        assert agent.staged() == [stage(7)]
        await agent.server.close()
        assert agent.staged() == [stage(7)]

    asyncio.run(run())


def test_the_next_stage_is_waited_for_of_workers_that_stage_until_they_are_gone(agent: Agent) -> None:
    async def run() -> None:
        await agent.begin()
        other, link = await agent.worker(), await agent.worker()
        await agent.server.wait_for_stages()  # Nobody has staged.
        await asyncio.to_thread(link.ask, stage(7), Done)
        for goes_on in (lambda: link.tell(stage(8)), link.close):
            waiting = asyncio.create_task(agent.server.wait_for_stages())
            await asyncio.to_thread(other.ask, Acquire(8), Slot)
            assert not waiting.done()
            goes_on()
            await waiting
        other.close()
        await agent.server.close()

    asyncio.run(run())


def test_half_a_message_and_what_else_a_worker_asks_at_the_end_of_its_round_do_not_count(agent: Agent) -> None:
    async def run() -> None:
        await agent.begin()
        with socket.socket(socket.AF_UNIX) as worker:
            await asyncio.to_thread(worker.connect, agent.path)
            worker.sendall(msgspec.json.encode(Hello(1, 0, 0, 1)) + b"\n")
            await asyncio.to_thread(worker.recv, 1000)
            worker.sendall(msgspec.json.encode(Acquire(8)) + b"\nnot JSON\n" + msgspec.json.encode(stage(8)))
            agent.server.end_round()
        assert agent.staged() == []
        agent.keeper.try_acquire.assert_not_called()
        await agent.server.close()

    asyncio.run(run())


def test_what_is_wrong_with_a_stage_is_told_at_the_next_question_and_the_answers_stay_in_step(agent: Agent) -> None:
    async def run() -> None:
        await agent.begin()
        link = await agent.worker()
        agent.keeper.commit_stage.side_effect = RuntimeError("iteration 7 of worker 0: torn")
        link.tell(stage(7))
        with pytest.raises(LinkError, match="iteration 7 of worker 0: torn"):
            await asyncio.to_thread(link.ask, Acquire(8), Slot)
        agent.keeper.commit_stage.side_effect = None
        link.tell(stage(8))
        assert (await asyncio.to_thread(link.ask, Acquire(9), Slot)).slot == 1
        assert await asyncio.to_thread(link.ask, stage(9), Done) == Done()
        assert agent.staged() == [stage(7), stage(8), stage(9)]
        link.close()
        await agent.server.close()

    asyncio.run(run())


HELLO = Hello(1, 0, 0, 1)
REFUSED = {
    "Hello comes first": stage(7),
    "round 2 is over": Hello(1, 0, 0, 2),
    "local rank 1 of 1 workers": Hello(1, 1, 1, 1),
    "local rank -1 of 1 workers": Hello(1, -1, -1, 1),
}


@pytest.mark.parametrize("why", REFUSED)
def test_whoever_has_no_place_in_the_round_is_told_why_and_hung_up_on(why: str, agent: Agent) -> None:
    assert problem_of(agent, msgspec.json.encode(REFUSED[why]) + b"\n") == why


@pytest.mark.parametrize("data", [b"not JSON\n", b"[]\n", b'{"type": "hello"}\n', b"\xff\n"])
def test_what_is_no_message_is_told_and_hung_up_on(data: bytes, agent: Agent) -> None:
    assert problem_of(agent, data).startswith("not understood: ")


def test_a_line_without_end_is_hung_up_on(agent: Agent) -> None:
    assert problem_of(agent, b" " * (LONGEST_LINE + 1)) == "a line of more than 1 MiB"


def problem_of(agent: Agent, data: bytes) -> str:
    """The problem that the agent tells whoever sends this; then it hangs up, and nothing that comes later counts."""

    async def run() -> bytes:
        await agent.begin()
        reader, writer = await asyncio.open_unix_connection(agent.path)
        writer.write(data)
        answer = await reader.readline()
        writer.write(b"".join(msgspec.json.encode(message) + b"\n" for message in (HELLO, stage(8))))
        with suppress(ConnectionError):  # Closed over what nobody has read, it is reset.
            assert await reader.read() == b""
        assert not agent.staged()
        writer.close()
        await agent.server.close()
        return answer

    return msgspec.json.decode(asyncio.run(run()), type=Problem).message


def test_a_data_shard_comes_from_the_master_however_long_it_takes(agent: Agent) -> None:
    agent.leases = [None, ShardLease(1, 7)]

    async def run() -> None:
        await agent.begin()
        link = await agent.worker()
        shard_taken = await asyncio.to_thread(link.ask, TakeShard(1, "data", 9, -1, 0, True), TakenShard)
        assert shard_taken == TakenShard(7)
        await agent.server.close()

    asyncio.run(run())
    assert agent.asked == [ShardRequest("worker-0-0", 0, 1, 1, "data", 9)] * 2


@pytest.mark.parametrize("answer", [ShardLease(1, -1, "another size"), NotUnderstood("another size")])
def test_a_worker_hears_why_it_gets_no_data_shard(agent: Agent, answer: ShardLease | Exception) -> None:
    agent.leases = [answer]

    async def run() -> None:
        await agent.begin()
        link = await agent.worker()
        with pytest.raises(LinkError, match="another size"):
            await asyncio.to_thread(link.ask, TakeShard(1, "data", 9, -1, 0, True), TakenShard)
        await agent.server.close()

    asyncio.run(run())
