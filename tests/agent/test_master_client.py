"""What counts as a sign of a master's life."""

import asyncio
import random
from typing import Any

import aiohttp
import pytest

from runtime.agent.client import MasterClient, NoPlace
from runtime.job.messages import JOB_HEADER, Heartbeat


def test_a_master_that_does_not_know_this_node_yet_is_alive(masters: Any) -> None:
    async def story() -> None:
        headers = {"Authorization": "Bearer secret", JOB_HEADER: "mine"}
        async with masters(job="another") as master, aiohttp.ClientSession(headers=headers) as session:
            client = MasterClient(master.url, lambda: None, random.Random(0), print)
            client.session, client.heard = session, 0.0
            with pytest.raises(NoPlace):
                await client.heartbeat(Heartbeat("worker-0", 0))
            assert client.heard > 0.0
            assert not client.met

    asyncio.run(story())
