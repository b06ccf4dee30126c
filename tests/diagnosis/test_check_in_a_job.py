"""Checks as a master makes them: one coordinator, nodes that come again, a new node with a trusted partner."""

import asyncio
import os
from pathlib import Path

import pytest

from runtime.diagnosis.coordinator import Coordinator
from runtime.diagnosis.errors import UnknownNodeError
from runtime.diagnosis.measuring import started
from runtime.diagnosis.node import check_node
from runtime.diagnosis.orders import Arrive, Ask
from runtime.diagnosis.verdicts import Health


def test_a_new_node_is_checked_with_a_healthy_partner_and_named_when_it_fails(tmp_path: Path) -> None:
    fault = "check.all_reduce,node=worker-1-1,round=1=raise"
    environment = {**os.environ, "EVERSTEP_FAULT": fault, "EVERSTEP_FAULT_DIR": str(tmp_path)}

    async def story() -> None:
        coordinator = Coordinator()
        async with started(environment) as measuring:
            for new, wanted in (("worker-1-0", Health.HEALTHY), ("worker-1-1", Health.FAULTY)):
                nodes = ["worker-0-0", new]
                parts = [check_node(coordinator, Arrive(node, "here", "127.0.0.1"), measuring) for node in nodes]
                ends = asyncio.gather(*parts)
                assert await coordinator.arrived(nodes, 60.0) == set()
                verdicts = await coordinator.check(nodes, trusted=nodes[:1])
                assert verdicts[1].health in ({wanted, Health.STRAGGLER} if wanted is Health.HEALTHY else {wanted})
                assert not verdicts[0].avoid
                assert [over.verdict for over in await ends] == verdicts
        assert [mark.name for mark in tmp_path.iterdir()] == ["check.all_reduce"]

    asyncio.run(story())


def test_nodes_that_are_all_trusted_need_no_work() -> None:
    async def story() -> None:
        coordinator = Coordinator()
        nodes = ["a", "b"]
        for node in nodes:
            await coordinator.arrive(Arrive(node, node, "127.0.0.1"))
        verdicts = await coordinator.check(nodes, trusted=nodes)
        assert [verdict.health for verdict in verdicts] == [Health.HEALTHY, Health.HEALTHY]

    asyncio.run(story())


def test_a_node_that_is_lost_is_given_up_at_once() -> None:
    async def story() -> None:
        coordinator = Coordinator()
        await coordinator.arrive(Arrive("a", "a", "127.0.0.1"))
        with pytest.raises(UnknownNodeError):
            await coordinator.order(Ask("b"))
        checking = asyncio.create_task(coordinator.check(["a"]))
        order = await coordinator.order(Ask("a"))
        assert order is not None
        coordinator.lose("a", "its pod was deleted")
        verdicts = await checking
        assert (verdicts[0].health, verdicts[0].reason) == (Health.FAULTY, "its pod was deleted")

    asyncio.run(story())


def test_without_its_process_a_node_is_told_to_have_died_and_not_waited_for() -> None:
    async def story() -> None:
        coordinator = Coordinator()
        async with started() as measuring:
            end = asyncio.create_task(check_node(coordinator, Arrive("a", "a", "127.0.0.1"), measuring))
            assert await coordinator.arrived(["a"], 60.0) == set()
            measuring.kill()
            verdicts = await coordinator.check(["a"])
            assert verdicts[0].health is Health.FAULTY
            assert verdicts[0].reason == "the process that measures was ended"
            assert (await end).verdict.avoid

    asyncio.run(story())
