"""Asks the job's master for a sign of life while this node stands still; if it gives none, a node makes the next one.

The master is asked as the neighbours are: directly and through others. If a neighbour is silent, too, the machine of
both is lost, and the nodes that are left cannot wait until the cluster says so. A master that alone is silent, or whose
machine refuses the connection, has some time: where it comes from makes another one. The nodes take turns, in the order
of their names, and each looks first whether another master has claimed the job: of two that claim it at once, one is
fenced.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from everstep.runtime.agent.client import MasterClient
from everstep.runtime.agent.neighbours import AGAIN_S, AWAY_S, LOOK_S, SILENT_S, NeighbourWatch, Questions
from everstep.runtime.protocol.messages import MASTER_NAME
from everstep.runtime.protocol.rounds import Neighbour

ALONE_S = 10.0
"""How long a master may be silent whose machine may not be lost."""
TURN_S = 2.0
"""How much longer each next node waits."""
ASKED_PER_S = 1000
"""Questions to the master per second across all agents of a job that stand still."""


@dataclass(frozen=True)
class NextMaster:
    """How this node makes the next master."""

    serve: Callable[[], Coroutine[Any, Any, None]]
    """Runs it; returns when it is the master no more. Raises OSError, RuntimeError, ValueError if it cannot be."""
    after_s: float = math.inf
    """How long a master may be silent while the workers go on."""


class MasterWatch:
    """Watches the master of one node's job, on an event loop."""

    def __init__(
        self,
        node: str,
        questions: Questions,
        neighbours: NeighbourWatch,
        client: MasterClient,
        next_master: NextMaster,
        say: Callable[[str], None],
    ) -> None:
        self._node = node
        self._questions = questions
        self._neighbours = neighbours
        self._client = client
        self._next = next_master
        self._say = say
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Look, ask and make the next master, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._client.met or not self._is_missed:
                continue
            asked_at = self._loop.time()
            if await self._is_there():
                await asyncio.sleep(max(AGAIN_S, self._client.crowd / ASKED_PER_S))
            else:
                await self._wait_for_turn(asked_at)

    @property
    def _is_missed(self) -> bool:
        """Whether this node cannot go on without a master, or has gone on without one for long."""
        return self._neighbours.stands_still or self._client.silent_s >= self._next.after_s

    async def _wait_for_turn(self, silent_since: float) -> None:
        """Make the next master when it is this node's turn, unless one answers or the workers go on before."""
        is_refused = await self._questions.is_refused(self._client.netloc)
        answer = asyncio.create_task(self._wait_for_answer())
        try:
            while self._is_missed and not answer.done():
                is_lost = self._neighbours.silent and not is_refused
                patience_s = ALONE_S if self._neighbours.stands_still and not is_lost else 0.0
                if self._loop.time() >= silent_since + patience_s + self._turn * TURN_S:
                    break
                await asyncio.sleep(LOOK_S)
            else:
                return
        finally:
            answer.cancel()
        if not await self._client.look_for_master():
            await self._make_next()

    async def _wait_for_answer(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_S)
            if await self._is_there():
                return

    async def _is_there(self) -> bool:
        """Whether a master of the job can be reached, by this node or another; True if this agent did not run while it
        asked, which proves nothing."""
        began = self._loop.time()
        master = Neighbour(MASTER_NAME, self._client.netloc)
        is_heard = await self._questions.is_heard(master, self._neighbours.answering)
        if is_heard or self._loop.time() - began >= SILENT_S + AWAY_S:
            return True
        return await self._client.look_for_master()

    async def _make_next(self) -> None:
        serving = asyncio.create_task(self._next.serve())
        try:
            while not serving.done() and not await self._client.look_for_master():
                await asyncio.wait({serving}, timeout=LOOK_S)
            await serving
        except (OSError, RuntimeError, ValueError) as error:  # The store or its journal cannot be read, or written.
            self._say(f"the next master cannot be here: {' '.join(str(error).split())}")
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        await asyncio.sleep(ALONE_S)

    @property
    def _turn(self) -> int:
        """How many others come first."""
        return sum(peer.node < self._node for peer in self._neighbours.answering)
