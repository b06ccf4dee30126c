"""Asks the neighbours' agents for a sign of life while this node stands still, so that a lost machine costs seconds.

After SWIM (Das, Gupta, Motivala 2002): a neighbour that does not answer within `INDIRECT_S` is asked through others,
too, and is silent only if none of them gets an answer either. What was asked while this agent itself did not run for a
while proves nothing (Lifeguard: a slow node must not accuse others). A neighbour that never answered is not accused: it
may be out of reach of all agents. The master decides what follows.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import aiohttp

from everstep.runtime.agent.progress_monitor import Progress
from everstep.runtime.protocol.rounds import Neighbour, Seat

STILL_S = 0.75
"""It asks once no worker has made progress for this long, or the node has waited this long for a seat."""
LOOK_S = 0.2
"""Between two looks at the workers' progress."""
AGAIN_S = 1.0
"""Between two questions."""
INDIRECT_S = 0.5
SILENT_S = 1.5
"""How long a neighbour may take to answer."""
AWAY_S = 0.5
"""An agent that wakes later than this did not run meanwhile."""
HELPERS = 3
"""Other neighbours that are asked to ask."""
PATH = "/v1/alive"


class Questions:
    """Asks agents whether they live."""

    def __init__(self, session: Callable[[], aiohttp.ClientSession], scheme: str) -> None:
        """`session` sends the job's token and trusts its certificates."""
        self._session = session
        self._scheme = scheme

    async def is_answered(self, whom: Neighbour, timeout_s: float, through: str = "") -> bool:
        """Whether the agent at that address answers in time, and is the node's; asked by the agent at `through`."""
        url = f"{self._scheme}://{through or whom.address}{PATH}"
        parameters = {"node": whom.node, "address": whom.address} if through else {}
        try:
            limit = aiohttp.ClientTimeout(total=timeout_s)
            async with self._session().get(url, params=parameters, timeout=limit) as reply:
                return reply.status == 200 and await reply.text() == whom.node
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return False

    async def is_heard(self, whom: Neighbour, others: Sequence[Neighbour]) -> bool:
        """Whether the agent at that address answers this node, or else some of the others."""
        direct = asyncio.create_task(self.is_answered(whom, SILENT_S))
        is_answered, _ = await asyncio.wait([direct], timeout=INDIRECT_S)
        if is_answered and direct.result():
            return True
        helpers = [peer.address for peer in others if peer is not whom][:HELPERS]
        rest_s = SILENT_S - INDIRECT_S
        through = [asyncio.create_task(self.is_answered(whom, rest_s, helper)) for helper in helpers]
        return await _any_true([direct, *through])

    async def is_refused(self, address: str) -> bool:
        """Whether the machine at that address refuses a connection: it is there, and nobody listens."""
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(INDIRECT_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except (OSError, ValueError) as error:
            return isinstance(error, ConnectionRefusedError)
        writer.close()
        return False


class NeighbourWatch:
    """Knows which neighbours of one node do not answer, while the node stands still."""

    def __init__(
        self,
        questions: Questions,
        progress: Callable[[], Progress],
        waits: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        """`waits`: whether the node waits for a seat. `on_change`: called when other neighbours are silent."""
        self._questions = questions
        self._progress = progress
        self._waits = waits
        self._on_change = on_change
        self._neighbours: tuple[Neighbour, ...] = ()
        self._loop = asyncio.get_running_loop()
        self._waits_since: float | None = None
        self._met: set[Neighbour] = set()
        """Those that have ever answered: a round without them does not make them strangers."""
        self._seated = asyncio.Event()
        self.silent: tuple[str, ...] = ()
        """Those that do not answer; none while the node does not stand still."""
        self._asked_at = 0.0

    @property
    def answering(self) -> tuple[Neighbour, ...]:
        """Those that answered when they were asked last, and those that were not asked yet."""
        return tuple(peer for peer in self._neighbours if peer.node not in self.silent)

    @property
    def stands_still(self) -> bool:
        """Whether no worker has made progress for so long that the node asks its neighbours."""
        return self._still_s() >= STILL_S

    def take_seat(self, seat: Seat) -> None:
        """From now on these are the neighbours."""
        self._neighbours, self.silent, self._waits_since = seat.neighbours, (), None
        self._seated.set()

    def as_fields(self) -> dict[str, Any]:
        """Who is silent, and for how long, as the fields of a heartbeat."""
        return {"silent": self.silent, "silent_s": self._loop.time() - self._asked_at} if self.silent else {}

    async def run(self) -> None:
        """Look and ask, until cancelled."""
        while True:
            woken_at = self._loop.time() + LOOK_S
            await self._until_seated(LOOK_S)
            if self._loop.time() - woken_at > AWAY_S:
                continue  # The workers' progress meanwhile is seen by the next look.
            if not self.stands_still and not self._seated.is_set():
                self._note((), self._loop.time())
                continue
            self._seated.clear()
            await self._ask_all()
            await self._until_seated(0 if self.silent else AGAIN_S)

    async def _until_seated(self, at_most_s: float) -> None:
        """Sleep, but ask the neighbours of a new round at once: only a neighbour that has answered can be silent."""
        with suppress(TimeoutError):  # asyncio.wait_for would swallow a cancellation that comes with the seat.
            async with asyncio.timeout(at_most_s):
                await self._seated.wait()

    def _still_s(self) -> float:
        if not self._waits():
            self._waits_since = None
            progress = self._progress()
            return progress.still_s if progress.has_beacon else 0.0
        if self._waits_since is None:
            self._waits_since = self._loop.time()
        return self._loop.time() - self._waits_since

    async def _ask_all(self) -> None:
        peers, began = self._neighbours, self._loop.time()
        answers = await asyncio.gather(*(self._questions.is_heard(peer, peers) for peer in peers))
        self._met.update(peer for peer, lives in zip(peers, answers, strict=True) if lives)
        if peers is not self._neighbours or self._loop.time() - began >= SILENT_S + AWAY_S:
            return
        silent = (peer.node for peer, lives in zip(peers, answers, strict=True) if not lives and peer in self._met)
        self._note(tuple(silent), began)

    def _note(self, silent: tuple[str, ...], asked_at: float) -> None:
        has_changed, self.silent, self._asked_at = silent != self.silent, silent, asked_at
        if has_changed:
            self._on_change()


async def _any_true(tasks: Sequence["asyncio.Task[bool]"]) -> bool:
    """Whether one of them gives True; the others are then cancelled."""
    try:
        for answer_ready in asyncio.as_completed(tasks):
            if await answer_ready:
                return True
        return False
    finally:
        for task in tasks:
            task.cancel()


def make_answer(node: str, questions: Questions) -> Callable[[str, str], Coroutine[Any, Any, str]]:
    """The agent's answer to (node, address): its own name, or that of the node it was asked to ask; empty if that does
    not answer."""

    async def answer(peers: str, address: str) -> str:
        if not peers:
            return node
        return peers if await questions.is_answered(Neighbour(peers, address), SILENT_S - INDIRECT_S) else ""

    return answer
