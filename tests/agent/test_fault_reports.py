"""What a node says of a worker that lost its connection."""

import asyncio
from types import SimpleNamespace
from typing import Any

from everstep.runtime.agent.fault_reports import FaultReports
from everstep.runtime.protocol.rounds import Seat


def test_a_rank_that_left_its_round_without_an_error_is_named_where_others_lose_their_connection() -> None:
    seat = Seat(
        epoch=0, round=3, role="worker", group_rank=1, group_world_size=2, first_rank=2, world_size=4,
        role_first_rank=2, role_world_size=4, master_addr="", master_port=0, restart_count=0, restore=None,
        persists=False,
    )  # fmt: skip

    async def report_disconnected(message: Any) -> None:
        """The master takes it."""

    async def story() -> list[str]:
        said: list[str] = []
        client: Any = SimpleNamespace(report_disconnected=report_disconnected)
        progress: Any = SimpleNamespace(iteration=lambda local_rank: 7)
        reports = FaultReports("worker-1-0", client, progress, lambda: asyncio.sleep(0), said.append)
        reports.begin_round()
        reports.note_finished(1)
        await reports.report_disconnected(seat, 0, "closed")
        reports.begin_round()
        await reports.report_disconnected(seat, 0, "closed again")
        reports.close()
        return said

    assert asyncio.run(story()) == [
        "round 3: rank 2 lost its connection to another rank: closed",
        "round 3: rank 3 had left it with exit code 0",
        "round 3: rank 2 lost its connection to another rank: closed again",
    ]
