"""One node's way through a check: carry out orders, tell what was measured, until the verdict."""

import asyncio
from typing import Protocol

from everstep.runtime.diagnosis.measurement_process import MeasurementProcess
from everstep.runtime.diagnosis.messages import Arrive, Ask, Order, Over, StageResult, Stop, Together, Work
from everstep.runtime.diagnosis.switchbox import SwitchboxSpec


class Link(Protocol):
    """The coordinator, as a node sees it: itself, or over HTTP."""

    async def arrive(self, arrive: Arrive) -> None:
        """This node is ready."""
        ...

    async def order(self, ask: Ask) -> Order | None:
        """The next order; None when none came for a while: ask again."""
        ...

    async def report(self, told: StageResult) -> None:
        """What the node measured."""
        ...


async def check_node(link: Link, me: Arrive, measuring: MeasurementProcess, box: SwitchboxSpec | None = None) -> Over:
    """Take part in one check; returns its end with the verdict on this node.

    Args:
        me: name, host and IP address of this node.
        measuring: the process that measures; nodes of one machine may share it.
        box: examine the links between this machine's devices too.

    Raises what the link raises when the coordinator is gone.
    """
    await link.arrive(me)
    telling = asyncio.create_task(_report_results(link, me.node, measuring))
    obeying = asyncio.create_task(_follow_orders(link, me, measuring, box))
    try:
        await asyncio.wait({telling, obeying}, return_when=asyncio.FIRST_COMPLETED)
        if telling.done():
            telling.result()  # it never ends but by raising
        return await obeying
    finally:
        measuring.end(me.node)
        for task in (telling, obeying):
            task.cancel()
        await asyncio.gather(telling, obeying, return_exceptions=True)


async def _report_results(link: Link, node: str, measuring: MeasurementProcess) -> None:
    while True:
        await link.report(await measuring.next_result(node))


async def _follow_orders(link: Link, me: Arrive, measuring: MeasurementProcess, box: SwitchboxSpec | None) -> Over:
    seen = 0
    while True:
        order = await link.order(Ask(me.node, seen))
        if order is None:
            continue
        seen = order.number
        match order:
            case Work():
                measuring.start_alone(me.node, me.host, me.address, order, box)
            case Together():
                measuring.start_together(me.node, order)
            case Stop():
                measuring.end(me.node)
            case Over():
                return order
