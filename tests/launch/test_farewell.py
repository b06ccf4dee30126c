"""What is said at the address of a job that is over."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from everstep.runtime.agent.client import MasterClient
from everstep.runtime.agent.ports import free_port
from everstep.runtime.launch.end_notice import EndNotice
from everstep.runtime.launch.probe import Answer, probe_endpoint
from everstep.runtime.master import Outcome
from everstep.runtime.master.telemetry import Telemetry, newest_number
from everstep.runtime.net.tls import Credentials
from everstep.runtime.net.token_gate import listen
from everstep.runtime.protocol.messages import Action, Heartbeat
from everstep.runtime.store import Store, open_store

TOKEN = "of the job"


@asynccontextmanager
async def end_notice(store: Store) -> AsyncIterator[int]:
    """That of job j, which is over; its port."""
    port = free_port(random.Random())
    outcome = Outcome("succeeded", "all nodes finished", "", None, 7, 0)
    telemetry = Telemetry(store, "j", 1, newest_number(store, "j", 1))
    notice = EndNotice(outcome, 1, Credentials(TOKEN), telemetry)
    saying = asyncio.create_task(notice.serve(listen("127.0.0.1", port)))
    try:
        yield port
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)


@asynccontextmanager
async def node(port: int) -> AsyncIterator[MasterClient]:
    """The client of a node that asks there."""
    client = MasterClient(f"http://127.0.0.1:{port}", lambda: None, random.Random(), print)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as client.session:
        yield client


def test_a_node_that_comes_too_late_finds_the_master_and_hears_how_the_job_ended(tmp_path: Path) -> None:
    async def probe() -> tuple[Answer, str | None]:
        async with end_notice(open_store(str(tmp_path))) as port, node(port) as client:
            answer = await asyncio.to_thread(probe_endpoint, "127.0.0.1", port, Credentials(TOKEN), "mine")
            end = await client.job_end("worker-1")
        return answer.answer, end and end.result

    assert asyncio.run(probe()) == (Answer.MASTER, "succeeded")


def test_the_last_telemetry_of_a_node_that_hears_of_the_end_is_stored_beside_the_masters(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))

    async def tell() -> Action:
        master = Telemetry(store, "j", 1)
        for number in (1, 2):
            master.add("worker-1", [{"n": number, "iteration": number}], 0.0)
            await master.flush()
        async with end_notice(store) as port, node(port) as client:
            line: Mapping[str, float | int | str] = {"n": 3, "iteration": 3}
            directive = await client.send_heartbeat(lambda: Heartbeat("worker-1", 1, telemetry=(dict(line),)))
        assert directive is not None
        return directive.action

    assert asyncio.run(tell()) is Action.LEAVE
    texts = [store.get(entry.key).decode() for entry in store.list("jobs/j/telemetry/")]
    assert [json.loads(line)["iteration"] for text in texts for line in text.splitlines()] == [1, 2, 3]
