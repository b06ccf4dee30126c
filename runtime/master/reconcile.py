"""The reconcile loop: makes the platform's nodes match the desired ones. Level-triggered: lost actions are repeated.

Only nodes in the journal are deleted: an unknown node belongs to a newer master. Before it creates or deletes nodes,
this master confirms that it still owns the job. If it is suspended right after that, its late actions do no harm: names
are never reused, so the newer master already knows a node created late as gone.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from everstep.runtime.job.events import NodeCreated, NodeGone
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.replicas import DesiredNode, desired_nodes
from everstep.runtime.master.journaled_brain import JournaledBrain
from everstep.runtime.net.token_gate import RateLimitedLog
from everstep.runtime.platform import Node, NodeEnd, NodeRequest, Platform
from everstep.runtime.system.processes import is_shortage

RECONCILE_INTERVAL_S = 2.0
"""Interval at which the platform is observed although nothing changed."""
_log = logging.getLogger(__name__)


class Reconciler:
    """Creates and deletes nodes for one master."""

    def __init__(
        self, brain: JournaledBrain, platform: Platform, request: Callable[[DesiredNode], NodeRequest]
    ) -> None:
        self._brain = brain
        self._platform = platform
        self._request = request
        self._seen: set[str] = set()
        """Names of nodes that the platform has reported or created. It reports their ends, with reasons, by itself."""
        self.empty = asyncio.Event()
        """Set while no node of the job exists."""
        self._seldom = RateLimitedLog(_log.warning)

    async def reconcile_once(self) -> None:
        """Compare desired and observed nodes once, and create and delete nodes.

        While descriptors, memory or processes are short, retries (a creation with the next call), and logs that once a
        minute.
        """
        while True:
            try:
                return await self._reconcile()
            except OSError as error:
                if not is_shortage(error):
                    raise
                self._tell_shortage(error)
            await asyncio.sleep(RECONCILE_INTERVAL_S)

    async def _reconcile(self) -> None:
        brain = self._brain
        observed: Mapping[str, Node] = {node.name: node for node in await self._platform.observe()}
        self._seen.update(observed)
        state, now = brain.state, brain.clock()
        want = {node.name: node for node in desired_nodes(state, brain.spec, now)}
        unseen = [node for name, node in want.items() if name not in self._seen]
        create = [node for node in unseen if node.create]
        ended = [NodeGone(node.name, "it ended while no master was running") for node in unseen if not node.create]
        await asyncio.gather(*map(brain.feed_soon, ended))
        delete = [node for name, node in observed.items() if name in state.nodes and name not in want]
        if create or delete:
            await brain.confirm_ownership()
            # Nodes of the minimum come first: otherwise a scheduler would preempt the extra ones for them.
            for extra in (False, True):
                if not all(await asyncio.gather(*(self._create(node) for node in create if node.extra is extra))):
                    break
            await asyncio.gather(*(self._platform.delete(node.name, node.uid) for node in delete))
        known_nodes = [name for name in observed if name in state.nodes]
        (self.empty.clear if known_nodes or any(node.create for node in want.values()) else self.empty.set)()

    async def _create(self, node: DesiredNode) -> bool:
        """Create the node; False if it is to be tried again, as descriptors, memory or processes are short."""
        try:
            await self._platform.create(self._request(node))
        except OSError as error:
            if is_shortage(error):
                self._tell_shortage(error)
                return False
            await self._brain.feed_soon(NodeGone(node.name, f"the platform could not create it: {error}"))
            return True
        self._seen.add(node.name)
        if self._brain.state.nodes[node.name].phase is NodePhase.REQUESTED:
            await self._brain.feed_soon(NodeCreated(node.name))
        return True

    def _tell_shortage(self, error: OSError) -> None:
        self._seldom.log(f"nodes cannot be created or deleted now: {error.strerror}")

    async def run(self) -> None:
        """Reconcile on each change and every few seconds, until cancelled."""
        while True:
            self._brain.changed.clear()
            await self.reconcile_once()
            try:
                async with asyncio.timeout(RECONCILE_INTERVAL_S):
                    await self._brain.changed.wait()
            except TimeoutError:
                continue

    async def watch_nodes(self) -> None:
        """Report nodes that are gone to the brain at once, until cancelled."""
        async for node_end in self._platform.node_ends():
            self._report_gone(node_end)

    def _report_gone(self, node_end: NodeEnd) -> None:
        gone = NodeGone(node_end.name, node_end.reason, node_end.exit_code, node_end.gave_way)
        self._brain.feed_soon(gone).add_done_callback(_forget)
        self._brain.changed.set()


def _forget(future: asyncio.Future[None]) -> None:
    """Only a brain that fails refuses a node's end, which ends the master anyhow."""
    if not future.cancelled():
        future.exception()
