"""Asks the job's master for a sign of life while this node stands still; if it gives none, an agent stands in for it.

The master is asked as the neighbours are: directly and through others. If a neighbour is silent, too, the machine of
both is lost, and the nodes that are left cannot wait until the cluster says so. A master that alone is silent, or whose
machine refuses the connection, has some time: where it comes from makes another one. The agents stand in by turns, in
the order of their names, and each looks first whether another master has claimed the job: of two that claim it at once,
one is fenced.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from everstep.runtime.agent.client import MasterClient
from everstep.runtime.agent.neighbours import AGAIN_S, AWAY_S, LOOK_S, SILENT_S, NeighbourWatch, Questions
from everstep.runtime.protocol.messages import MASTER_NAME
from everstep.runtime.protocol.rounds import Neighbour

ALONE_S = 10.0
"""How long a master may be silent whose machine may not be lost."""
TURN_S = 2.0
"""How much longer each next agent waits."""
ASKED_PER_S = 1000
"""Questions to the master per second across all agents of a job that stand still."""


class MasterWatch:
    """Watches the master of one node's job, on an event loop."""

    def __init__(
        self,
        node: str,
        questions: Questions,
        neighbours: NeighbourWatch,
        client: MasterClient,
        stand_in: Callable[[], Coroutine[Any, Any, str]],
        say: Callable[[str], None],
    ) -> None:
        """`stand_in` is the job's master until there is another one, and returns why it is not any more."""
        self._node = node
        self._questions = questions
        self._neighbours = neighbours
        self._client = client
        self._stand_in = stand_in
        self._say = say
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Look, ask and stand in, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._neighbours.stands_still or not self._client.met:
                continue
            asked_at = self._loop.time()
            if await self._is_there():
                await asyncio.sleep(max(AGAIN_S, self._client.crowd / ASKED_PER_S))
            else:
                await self._bridge(asked_at)

    async def _bridge(self, silent_since: float) -> None:
        """Stand in when it is this node's turn, unless a master answers or the workers go on before."""
        is_refused = await self._questions.is_refused(self._address)
        answer = asyncio.create_task(self._wait_for_answer())
        try:
            while self._neighbours.stands_still and not answer.done():
                patience_s = 0.0 if self._neighbours.silent and not is_refused else ALONE_S
                if self._loop.time() >= silent_since + patience_s + self._turn * TURN_S:
                    break
                await asyncio.sleep(LOOK_S)
            else:
                return
        finally:
            answer.cancel()
        if not await self._client.look_for_master():
            await self._be_master()

    async def _wait_for_answer(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_S)
            if await self._is_there():
                return

    async def _is_there(self) -> bool:
        """Whether a master of the job can be reached, by this node or another; True if this agent did not run while it
        asked, which proves nothing."""
        began = self._loop.time()
        is_heard = await self._questions.is_heard(Neighbour(MASTER_NAME, self._address), self._neighbours.answering)
        if is_heard or self._loop.time() - began >= SILENT_S + AWAY_S:
            return True
        return await self._client.look_for_master()

    async def _be_master(self) -> None:
        self._say("the master does not answer; this node stands in for it")
        standing_in = asyncio.create_task(self._stand_in())
        try:
            while not standing_in.done() and not await self._client.look_for_master():
                await asyncio.wait({standing_in}, timeout=LOOK_S)
            why = await standing_in
        except (OSError, RuntimeError, ValueError) as error:  # The store or its journal cannot be read, or written.
            why = " ".join(str(error).split())
        finally:
            standing_in.cancel()
            await asyncio.gather(standing_in, return_exceptions=True)
        self._say(f"this node does not stand in for the master any more: {why}")
        await asyncio.sleep(ALONE_S)

    @property
    def _address(self) -> str:
        host, port = self._client.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def _turn(self) -> int:
        """How many others come first."""
        return sum(peer.node < self._node for peer in self._neighbours.answering)
