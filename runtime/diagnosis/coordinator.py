"""The one whom all nodes of a check ask: a session's shell, with an event loop's clock and long polls."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from runtime.diagnosis.evidence import Round
from runtime.diagnosis.orders import Arrive, Ask, Order, Over, Told
from runtime.diagnosis.session import Session
from runtime.diagnosis.verdicts import Verdict

POLL_S = 20.0
"""How long a question for orders is held."""
_ANYTHING = ""
"""Key of those who wait for whatever happens; other keys are nodes."""


class UnknownNodeError(LookupError):
    """A node that has not arrived: it should arrive again."""


class TakenNameError(LookupError):
    """A node arrives under a name that takes part in a check already."""


class Coordinator:
    """Checks nodes that arrive. A node's `Link` for those in this process; `serving.routes` for the others.

    Args:
        timeout_s: for a node's part in one round; a node that takes longer has failed.
        exclude_straggler: the verdict on a straggler is to avoid it.
        on_round: told of each finished round.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 300.0,
        exclude_straggler: bool = False,
        on_round: Callable[[Round], None] = lambda told: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s = timeout_s
        self._exclude_straggler = exclude_straggler
        self._on_round = on_round
        self._clock = clock
        self._arrived: dict[str, Arrive] = {}
        self._sessions: dict[str, Session] = {}
        self._left: set[str] = set()
        self._events: dict[str, asyncio.Event] = {}

    async def arrived(self, nodes: Collection[str], timeout_s: float) -> set[str]:
        """Wait for these nodes; returns those that did not arrive in time."""
        return await self._wait(lambda: set(nodes) - self._arrived.keys(), timeout_s)

    async def check(self, nodes: Sequence[str], trusted: Iterable[str] = ()) -> list[Verdict]:
        """Check nodes that have arrived, in rank order; `trusted` ones only serve as partners. One verdict a node."""
        session = Session(
            [self._arrived.pop(node) for node in nodes],
            trusted=trusted,
            timeout_s=self._timeout_s,
            exclude_straggler=self._exclude_straggler,
        )
        self._sessions.update(dict.fromkeys(nodes, session))
        self._left.difference_update(nodes)
        session.begin(self._clock())
        known = 0
        while True:
            self._wake(*session.take_ordered())
            for told in session.past[known:]:
                self._on_round(told)
            known = len(session.past)
            if session.verdicts is not None:
                return session.verdicts
            await self._sleep(_ANYTHING, session.next_deadline())
            session.wake(self._clock())

    async def dismissed(self, nodes: Collection[str], timeout_s: float) -> set[str]:
        """Wait until these nodes have been given their verdicts; returns those that did not ask in time."""
        return await self._wait(lambda: set(nodes) - self._left, timeout_s)

    def lose(self, node: str, reason: str) -> None:
        """This node is gone for good: nobody needs to wait for it."""
        self._arrived.pop(node, None)
        if node in self._sessions:
            self._sessions[node].lose(node, reason, self._clock())
        self._wake()

    async def arrive(self, arrive: Arrive) -> None:
        """A node is ready. Raises TakenNameError for one that is being checked."""
        session = self._sessions.get(arrive.node)
        known = self._arrived.get(arrive.node) or (session.members[arrive.node] if session else None)
        if session is not None and session.verdicts is None and arrive != known:
            raise TakenNameError(f"node {arrive.node} is being checked already, on {known.host if known else '?'}")
        if session is None or session.verdicts is not None:
            self._arrived[arrive.node] = arrive
            self._wake()

    async def order(self, ask: Ask) -> Order | None:
        """The newest order of the node, as soon as there is one that it has not seen; None after POLL_S."""
        deadline = self._clock() + POLL_S
        while True:
            if ask.node not in self._arrived:
                if ask.node not in self._sessions:
                    raise UnknownNodeError(f"node {ask.node} has not arrived here")
                order = self._sessions[ask.node].order(ask.node, ask.seen)
                if isinstance(order, Over):
                    self._left.add(ask.node)
                    self._wake()
                if order is not None:
                    return order
            if self._clock() >= deadline:
                return None
            await self._sleep(ask.node, deadline)

    async def told(self, told: Told) -> None:
        """A node measured something."""
        if told.node not in self._sessions:
            raise UnknownNodeError(f"node {told.node} has not arrived here")
        self._sessions[told.node].hear(told, self._clock())
        self._wake()

    def _wake(self, *nodes: str) -> None:
        """Wake who waits for anything to happen, and the questions of these nodes."""
        for key in (_ANYTHING, *nodes):
            event = self._events.pop(key, None)
            if event is not None:
                event.set()

    async def _sleep(self, key: str, deadline: float | None) -> None:
        event = self._events.setdefault(key, asyncio.Event())
        try:
            await asyncio.wait_for(event.wait(), None if deadline is None else max(0.0, deadline - self._clock()))
        except TimeoutError:
            return

    async def _wait(self, missing: Callable[[], set[str]], timeout_s: float) -> set[str]:
        deadline = self._clock() + timeout_s
        while (left := missing()) and self._clock() < deadline:
            await self._sleep(_ANYTHING, deadline)
        return left
