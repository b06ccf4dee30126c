"""One node's way through a check: carry out orders, tell what was measured, until the verdict."""

import asyncio
from typing import Protocol

from everstep.runtime.diagnosis.measurement_process import Measuring
from everstep.runtime.diagnosis.messages import Arrive, Ask, Order, Over, Stop, Together, Told, Work
from everstep.runtime.diagnosis.switchbox import Box


class Link(Protocol):
    """The coordinator, as a node sees it: itself, or over HTTP."""

    async def arrive(self, arrive: Arrive) -> None:
        """This node is ready."""
        ...

    async def order(self, ask: Ask) -> Order | None:
        """The next order; None when none came for a while: ask again."""
        ...

    async def told(self, told: Told) -> None:
        """What the node measured."""
        ...


async def check_node(link: Link, me: Arrive, measuring: Measuring, box: Box | None = None) -> Over:
    """Take part in one check; returns its end with the verdict on this node.

    Args:
        me: name, host and IP address of this node.
        measuring: the process that measures; nodes of one machine may share it.
        box: examine the links between this machine's devices too.

    Raises what the link raises when the coordinator is gone.
    """
    await link.arrive(me)
    telling = asyncio.create_task(_tell(link, me.node, measuring))
    obeying = asyncio.create_task(_obey(link, me, measuring, box))
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


async def _tell(link: Link, node: str, measuring: Measuring) -> None:
    while True:
        await link.told(await measuring.told(node))


async def _obey(link: Link, me: Arrive, measuring: Measuring, box: Box | None) -> Over:
    seen = 0
    while True:
        order = await link.order(Ask(me.node, seen))
        if order is None:
            continue
        seen = order.number
        match order:
            case Work():
                measuring.begin(me.node, me.host, me.address, order, box)
            case Together():
                measuring.go(me.node, order)
            case Stop():
                measuring.end(me.node)
            case Over():
                return order
