"""Masters as real processes: killed in the middle of each kind of write, or put to sleep and woken after a takeover."""

import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec
import pytest

from everstep.runtime.agent.client import MasterClient
from everstep.runtime.faults import FAULT_DIR_VARIABLE, FAULT_VARIABLE
from everstep.runtime.job.fold import fold
from everstep.runtime.job.records import JobEnded, MasterClaimed, NodeFinished, NodeLost, Record, RoundFormed
from everstep.runtime.journal.journal import claim
from everstep.runtime.master import Outcome, find_master, read_journal
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Action, Directive, Finished, Heartbeat, Join, Persisted, WorkerExit
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.store import DirectoryStore
from tests.harness import ROOT, wait_until
from tests.master.master_process import JOB

NODES = ["worker-0-0", "worker-1-0"]
SECONDS = 240.0
T = TypeVar("T")


class Masters:
    """The processes that were the job's master, one after the other, and what they share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = DirectoryStore(folder / "store")
        self.token = secrets.token_hex(8)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, fault: str = "", torn: str = "") -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), FAULT_DIR_VARIABLE: str(self.folder), "TOKEN": self.token}
        environment |= {key: value for key, value in ((FAULT_VARIABLE, fault), ("TORN", torn)) if value}
        self.started.append(
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("master_process.py")), str(self.folder)],
                env=environment, stdout=subprocess.PIPE,
            )
        )  # fmt: skip
        return self.started[-1]

    async def wait_for_end(self, master: subprocess.Popen[bytes]) -> tuple[int, Outcome | None]:
        """Its exit code and what it said."""
        output, _ = await asyncio.to_thread(master.communicate)
        return master.returncode, msgspec.json.decode(output, type=Outcome) if output else None

    async def wait_for_claim(self, epoch: int) -> str:
        """The address of the master of that epoch, once there is one."""

        def find_address() -> str | None:
            master = find_master(self.store, JOB)
            return master.address if master and master.epoch >= epoch else None

        return await asyncio.to_thread(wait_until, find_address, f"the master of epoch {epoch}", SECONDS)

    async def node(self, name: str) -> None:
        """Until that node was made."""
        await asyncio.to_thread(wait_until, (self.folder / "nodes" / name).exists, name, SECONDS)

    def actions(self, master: subprocess.Popen[bytes]) -> list[str]:
        """What that master did to the platform."""
        lines = (self.folder / "actions").read_text().splitlines()
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{master.pid} ")]

    def journal(self) -> list[Record]:
        return list(read_journal(self.store, JOB))

    def close(self) -> None:
        for master in self.started:
            master.kill()
            master.wait()
            assert master.stdout
            master.stdout.close()


class Agent:
    """What a real agent says, through the real client; its workers are thought of."""

    def __init__(self, masters: Masters, session: aiohttp.ClientSession, name: str, address: str) -> None:
        self.name = name
        self.said: list[str] = []
        self.seen = 0

        def find() -> tuple[int, str] | None:
            return find_master(masters.store, JOB)

        self.client = MasterClient(f"http://{address}", find, random.Random(name), self.said.append)
        self.client.session = session

    async def join(self, after: int) -> Seat:
        holdings = (Holding(after, after, node=self.name, address="127.0.0.1:7"),) if after else ()
        message = Join(self.name, "worker", "", 1, "127.0.0.1:7", 29500, holdings, after, number=after + 1)
        while (seat := await self.client.join(message)) is None:
            pass
        return seat

    async def wait_for_directive(self, action: Action, round_: int) -> Directive:
        while True:
            directive = await self.client.send_heartbeat(partial(Heartbeat, self.name, round_, seen=self.seen))
            assert directive is not None
            if directive.number > self.seen:
                self.seen = directive.number
                assert directive.action in (action, Action.CONTINUE), directive
                if directive.action is action:
                    return directive

    async def persist(self, round_: int, iteration: int) -> str:
        key = f"jobs/{JOB}/checkpoints/{round_:06d}-{iteration:09d}/rank-00000.safetensors"
        message = Persisted(self.name, Holding(round_, iteration, key=key, size=1, digest="d" * 32))
        while not (manifest := await self.client.report_persisted(message)):
            pass
        return manifest


@asynccontextmanager
async def _session(token: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with asyncio.timeout(SECONDS), aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        yield session


def play(folder: Path, story: Callable[[Masters, aiohttp.ClientSession], Awaitable[T]]) -> T:
    masters = Masters(folder)

    async def run_story() -> T:
        try:
            async with _session(masters.token) as session:
                return await story(masters, session)
        finally:
            masters.close()

    return asyncio.run(run_story())


async def _life(masters: Masters, agent: Agent, faulty: bool, all_seated: asyncio.Barrier) -> list[str]:
    """Two rounds, because of one worker's death, a checkpoint in each; the manifests."""
    manifests = []
    seat = await agent.join(0)
    await all_seated.wait()
    assert seat.round == 1, "nothing but the worker's death may end a round"
    if seat.persists:
        manifests.append(await agent.persist(1, 1))
    if faulty:
        exit_report = WorkerExit(agent.name, 1, seat.first_rank, 0, -9, 1)
        await agent.client.report_fault(lambda: exit_report)
    await agent.wait_for_directive(Action.REJOIN, 1)
    seat = await agent.join(1)
    assert seat.round == 2
    assert seat.restore is not None
    assert (seat.restore.round, seat.restore.iteration) == (1, 1)
    if seat.persists:
        manifests.append(await agent.persist(2, 2))
    await agent.client.send_heartbeat(lambda: Heartbeat(agent.name, 2, 2, telemetry=({"v": 1, "iteration": 2},)))
    await agent.client.report_finished(Finished(agent.name, 2))
    await agent.wait_for_directive(Action.LEAVE, 2)
    (masters.folder / "nodes" / agent.name).unlink(missing_ok=True)
    return manifests


async def _succession(masters: Masters, fault: str, torn: str) -> list[int]:
    """Masters until one ends by itself; how each ended."""
    codes = []
    while not codes or codes[-1] == -signal.SIGKILL:
        code, _ = await masters.wait_for_end(masters.start(fault, torn))
        codes.append(code)
    return codes


def check_killed(folder: Path, mark: str, fault: str = "", torn: str = "") -> None:
    """A job whose master is killed once: everything is as if it had not been."""

    async def story(masters: Masters, session: aiohttp.ClientSession) -> None:
        succession = asyncio.create_task(_succession(masters, fault, torn))
        for name in NODES:
            await masters.node(name)
        address = await masters.wait_for_claim(1)
        agents = [Agent(masters, session, name, address) for name in NODES]
        all_seated = asyncio.Barrier(len(agents))
        lives = asyncio.gather(*(_life(masters, agent, agent.name == NODES[1], all_seated) for agent in agents))
        manifests = sorted(key for keys in await lives for key in keys)
        assert await succession == [-signal.SIGKILL, 0]
        assert (folder / mark).exists(), "the fault must have fired"
        assert [masters.store.get(key)[:1] for key in manifests] == [b"{", b"{"]
        records = masters.journal()
        end_position = next(at for at, record in enumerate(records) if isinstance(record, JobEnded))
        assert [r.round.number for r in records if isinstance(r, RoundFormed)] == [1, 2]
        assert not [r for r in records[:end_position] if isinstance(r, NodeLost)], "every node was adopted"
        epochs = [r.epoch for r in records if isinstance(r, MasterClaimed)]
        assert epochs == list(range(1, len(epochs) + 1))
        times = [r.time for r in records]
        assert times == sorted(times)
        state = fold(records)
        assert state.ended is not None
        assert state.ended.exit_code == 0
        _, replayed = claim(masters.store, JOB, "a:1", 0.0)
        assert replayed.nodes == state.nodes
        assert replayed.checkpoints == state.checkpoints

    play(folder, story)


@pytest.mark.parametrize(
    "point",
    [
        "journal.before_create,number=1",
        "journal.after_create,number=1",
        "journal.before_create,number=3",
        "journal.after_create,number=4",
        "master.after_journal",
        "snapshot.before_create",
        "snapshot.after_create",
        "master.before_manifest,iteration=1",
        "master.after_manifest,iteration=2",
    ],
)
def test_a_master_killed_at_a_write_is_followed_by_one_that_goes_on(tmp_path: Path, point: str) -> None:
    check_killed(tmp_path, point.partition(",")[0], fault=f"{point}=kill")


@pytest.mark.parametrize(
    "place", ["journal:1", "journal:2", "journal:5", "snapshots:1", "checkpoints:1", "checkpoints:2", "telemetry:1"]
)
def test_a_master_killed_at_any_byte_of_an_object_leaves_nothing_half_written(tmp_path: Path, place: str) -> None:
    check_killed(tmp_path, "torn", torn=f"{place}:{random.Random(place).randrange(200)}")


def test_a_master_that_slept_through_a_takeover_changes_nothing_any_more(tmp_path: Path) -> None:
    async def story(masters: Masters, session: aiohttp.ClientSession) -> None:
        old = masters.start()
        for name in NODES:
            await masters.node(name)
        theirs = await masters.wait_for_claim(1)
        one, two = (Agent(masters, session, name, theirs) for name in NODES)
        await asyncio.gather(one.join(0), two.join(0))
        actions_before = masters.actions(old)

        old.send_signal(signal.SIGSTOP)
        new = masters.start()
        ours = await masters.wait_for_claim(2)
        one, two = (Agent(masters, session, name, ours) for name in NODES)
        (tmp_path / "nodes" / NODES[1]).unlink()
        await one.wait_for_directive(Action.REJOIN, 1)
        await masters.node("worker-1-1")
        fresh = Agent(masters, session, "worker-1-1", ours)
        seats = await asyncio.gather(one.join(1), fresh.join(0))
        assert {(seat.epoch, seat.round) for seat in seats} == {(2, 2)}
        before = masters.journal()

        late = Agent(masters, session, NODES[0], theirs)
        late.client.epoch = 2
        heartbeat_task = asyncio.create_task(
            late.client.send_heartbeat(lambda: Heartbeat(NODES[0], 2, telemetry=({"v": 1},)))
        )
        response = await _send(theirs, masters.token, Finished(NODES[0], 1))
        old.send_signal(signal.SIGCONT)
        code, outcome = await masters.wait_for_end(old)
        assert (code, outcome and outcome.state) == (75, "fenced")
        answer = await heartbeat_task
        assert answer is not None
        assert answer.epoch == 2, "the old one's answer must be refused, and the new one's taken"
        response.close()
        assert masters.actions(old) == actions_before, "the old one must touch no node"
        assert masters.journal()[: len(before)] == before
        assert not [r for r in masters.journal() if isinstance(r, NodeFinished)]

        for agent in (one, fresh):
            await agent.client.report_finished(Finished(agent.name, 2))
        for agent in (one, fresh):
            await agent.wait_for_directive(Action.LEAVE, 2)
            (tmp_path / "nodes" / agent.name).unlink(missing_ok=True)
        assert (await masters.wait_for_end(new))[0] == 0

    play(tmp_path, story)


async def _send(address: str, token: str, message: Finished) -> asyncio.StreamWriter:
    """A message that lies in the sleeping process's socket: it finds it when it wakes."""
    host, _, port = address.partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = msgspec.json.encode(message)
    head = f"POST /v1/finished HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return writer
