"""What is said at the address of a job that is over."""

import asyncio
import random

from everstep.runtime.agent.client import MasterClient
from everstep.runtime.agent.ports import free_port
from everstep.runtime.launch.end_notice import EndNotice
from everstep.runtime.launch.probe import Answer, probe_endpoint
from everstep.runtime.master import Outcome
from everstep.runtime.net.tls import Credentials
from everstep.runtime.net.token_gate import listen

TOKEN = "of the job"


def test_a_node_that_comes_too_late_finds_the_master_and_hears_how_the_job_ended() -> None:
    import aiohttp

    async def probe() -> tuple[Answer, str | None]:
        port = free_port(random.Random())
        outcome = Outcome("succeeded", "all nodes finished", "", None, 7, 0)
        saying = asyncio.create_task(EndNotice(outcome, 1, Credentials(TOKEN)).serve(listen("127.0.0.1", port)))
        answer = await asyncio.to_thread(probe_endpoint, "127.0.0.1", port, Credentials(TOKEN), "mine")
        client = MasterClient(f"http://127.0.0.1:{port}", lambda: None, random.Random(), print)
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as client.session:
            end = await client.job_end("worker-1")
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)
        return answer.answer, end and end.result

    assert asyncio.run(probe()) == (Answer.MASTER, "succeeded")
