"""One node's part in a check: follow orders and report measurements until the verdict."""

import asyncio
from typing import Protocol

from everstep.runtime.diagnosis.measurement_process import MeasurementProcess
from everstep.runtime.diagnosis.messages import Arrive, Ask, Order, Over, StageResult, Stop, Together, Work
from everstep.runtime.diagnosis.switchbox import SwitchboxSpec


class Link(Protocol):
    """The coordinator as a node sees it: the object itself, or over HTTP."""

    async def arrive(self, arrive: Arrive) -> None:
        """This node is ready."""
        ...

    async def order(self, ask: Ask) -> Order | None:
        """The next order; None after a long poll: ask again."""
        ...

    async def report(self, result: StageResult) -> None:
        """Report what the node measured."""
        ...


async def check_node(link: Link, me: Arrive, measuring: MeasurementProcess, box: SwitchboxSpec | None = None) -> Over:
    """Take part in one check. Returns its end, with the verdict on this node.

    Args:
        me: name, host and IP address of this node.
        measuring: the process that measures; nodes of one machine may share it.
        box: examine the links between this machine's devices too.

    Raises the errors of the link if the coordinator is gone.
    """
    await link.arrive(me)
    order = await wait_for_order(link, me.node)
    return await follow_orders(link, me, order, measuring, box)


async def wait_for_order(link: Link, node: str, last_number: int = 0) -> Order:
    """The node's next order: the first one once others are ready, too."""
    while (order := await link.order(Ask(node, last_number))) is None:
        pass
    return order


async def follow_orders(
    link: Link, me: Arrive, order: Order, measuring: MeasurementProcess, box: SwitchboxSpec | None = None
) -> Over:
    """Follow this order and the later ones of a check; returns its end."""
    reports = asyncio.create_task(_report_results(link, me.node, measuring))
    orders = asyncio.create_task(_follow_orders(link, me, order, measuring, box))
    try:
        await asyncio.wait({reports, orders}, return_when=asyncio.FIRST_COMPLETED)
        if reports.done():
            reports.result()  # It ends only by raising.
        return await orders
    finally:
        measuring.end(me.node)
        for task in (reports, orders):
            task.cancel()
        await asyncio.gather(reports, orders, return_exceptions=True)


async def _report_results(link: Link, node: str, measuring: MeasurementProcess) -> None:
    while True:
        await link.report(await measuring.next_result(node))


async def _follow_orders(
    link: Link, me: Arrive, order: Order, measuring: MeasurementProcess, box: SwitchboxSpec | None
) -> Over:
    while True:
        match order:
            case Work():
                measuring.start_alone(me.node, me.host, me.address, order, box)
            case Together():
                measuring.start_together(me.node, order)
            case Stop():
                measuring.end(me.node)
            case Over():
                return order
        order = await wait_for_order(link, me.node, order.number)
