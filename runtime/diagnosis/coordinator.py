"""The coordinator of a check: a session in an event loop, with a real clock and long polls."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from everstep.runtime.diagnosis.errors import NoQuorumError, TakenNameError, UnknownNodeError
from everstep.runtime.diagnosis.evidence import Round
from everstep.runtime.diagnosis.messages import Arrive, Ask, Order, Over, StageResult
from everstep.runtime.diagnosis.session import Session
from everstep.runtime.diagnosis.verdicts import Verdict

POLL_S = 20.0
"""Duration of a long poll for orders."""
SILENCE_S = POLL_S + 10.0
"""A node without a request for this long is gone. Its `HttpLink` gives the coordinator up after the same time."""
_ANY_EVENT = ""
"""Key of the waiters for any event; all other keys are nodes."""


class Coordinator:
    """Checks nodes that arrive. It is the `Link` of nodes in this process; other nodes use `http_link`.

    Args:
        timeout_s: for a node's part in one round; a node that takes longer has failed.
        exclude_straggler: the verdict on a straggler is to avoid it.
        on_round: called with each finished round.
        silence_s: a node that is being checked and asks for no orders for this long is gone.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 300.0,
        exclude_straggler: bool = False,
        on_round: Callable[[Round], None] = lambda round_: None,
        clock: Callable[[], float] = time.monotonic,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._timeout_s = timeout_s
        self._exclude_straggler = exclude_straggler
        self._on_round = on_round
        self._clock = clock
        self._silence_s = silence_s
        self._arrived: dict[str, Arrive] = {}
        self._sessions: dict[str, Session] = {}
        self._dismissed: set[str] = set()
        self._events: dict[str, asyncio.Event] = {}
        self._polls: Counter[str] = Counter()
        self._silent_since: dict[str, float] = {}
        """Node without a pending poll -> since when; the longest silent first."""
        self._called_off = ""

    async def wait_for_arrivals(
        self, nodes: Collection[str], timeout_s: float, more_than: int | None = None
    ) -> set[str]:
        """Wait for these nodes, or for more than `more_than` of them. Returns those that have not arrived."""

        def missing() -> set[str]:
            absent = set(nodes) - self._arrived.keys()
            return set() if more_than is not None and len(nodes) - len(absent) > more_than else absent

        await self._wait_until_empty(missing, timeout_s)
        return set(nodes) - self._arrived.keys()

    async def check(self, nodes: Sequence[str], trusted_names: Iterable[str] = ()) -> list[Verdict]:
        """Check nodes that have arrived, in rank order. Returns one verdict a node. `trusted_names` nodes only serve as
        partners.

        Raises KeyError for a node that has not arrived. Checks of other nodes may run at the same time.
        """
        session = Session(
            [self._arrived.pop(node) for node in nodes],
            trusted_names=trusted_names,
            timeout_s=self._timeout_s,
            exclude_straggler=self._exclude_straggler,
        )
        self._sessions.update(dict.fromkeys(nodes, session))
        self._dismissed.difference_update(nodes)
        session.begin(self._clock())
        rounds_judged = 0
        while True:
            self._mark_silent_lost()
            self._wake(*session.take_ordered_nodes())
            for round_ in session.past[rounds_judged:]:
                self._on_round(round_)
            rounds_judged = len(session.past)
            if session.verdicts is not None:
                return session.verdicts
            look = self._clock() + self._silence_s / 6
            await self._wait_for_event(_ANY_EVENT, min(look, session.next_deadline() or look))
            session.handle_timer(self._clock())

    async def wait_until_dismissed(self, nodes: Collection[str], timeout_s: float) -> set[str]:
        """Wait until these nodes have received their verdicts. Returns those that did not ask in time."""
        return await self._wait_until_empty(lambda: set(nodes) - self._dismissed, timeout_s)

    def call_off(self, reason: str) -> None:
        """Cancel the check. Nodes that ask get a NoQuorumError with this reason."""
        self._called_off = reason
        self._wake(*list(self._events))

    def address(self, node: str) -> str:
        """The IP address of a node that has arrived."""
        return self._arrived[node].address

    def ready_nodes(self) -> list[str]:
        """Nodes that have arrived, were not checked since, and are polling, so are alive. In the order of arrival."""
        return [node for node in self._arrived if self.is_waiting(node)]

    async def wait_for_event(self, timeout_s: float) -> None:
        """Wait for any event, at most `timeout_s`."""
        await self._wait_for_event(_ANY_EVENT, self._clock() + timeout_s)

    def is_waiting(self, node: str) -> bool:
        """Is this node polling for an order? Then it is alive."""
        return self._polls[node] > 0

    def mark_lost(self, node: str, reason: str) -> None:
        """This node is gone for good: do not wait for it."""
        self._arrived.pop(node, None)
        if node in self._sessions:
            self._sessions[node].mark_lost(node, reason, self._clock())
        self._wake()

    def _mark_silent_lost(self) -> None:
        due = self._clock() - self._silence_s
        while self._silent_since and self._silent_since[node := next(iter(self._silent_since))] <= due:
            del self._silent_since[node]
            self.mark_lost(node, f"it asked for no orders for {self._silence_s:g} s")

    def _note_contact(self, node: str) -> None:
        """The node's poll started or ended: update its silence."""
        self._silent_since.pop(node, None)
        if not self.is_waiting(node):
            self._silent_since[node] = self._clock()

    async def arrive(self, arrive: Arrive) -> None:
        """A node is ready. Raises TakenNameError if another living node has this name."""
        session = self._sessions.get(arrive.node)
        checking = session is not None and session.verdicts is None
        member = session.members[arrive.node] if session and checking else self._arrived.get(arrive.node)
        if member is not None and member != arrive and (checking or self.is_waiting(arrive.node)):
            raise TakenNameError(f"node {arrive.node} is here already, on {member.host}; give each its own rank")
        self._note_contact(arrive.node)
        if not checking:
            self._arrived[arrive.node] = arrive
            self._wake()

    async def order(self, ask: Ask) -> Order | None:
        """The newest order of the node, as soon as there is one that it has not seen; None after POLL_S."""
        deadline = self._clock() + POLL_S
        self._polls[ask.node] += 1
        self._note_contact(ask.node)
        try:
            while True:
                order = self._next_order(ask)
                if order is not None or self._clock() >= deadline:
                    return order
                await self._wait_for_event(ask.node, deadline)
        finally:
            self._polls[ask.node] -= 1
            self._note_contact(ask.node)

    def _next_order(self, ask: Ask) -> Order | None:
        if self._called_off:
            raise NoQuorumError(self._called_off)
        if ask.node in self._arrived:
            return None
        if ask.node not in self._sessions:
            raise UnknownNodeError(f"node {ask.node} has not arrived here")
        order = self._sessions[ask.node].order(ask.node, ask.seen)
        if isinstance(order, Over):
            self._dismissed.add(ask.node)
            self._wake()
        return order

    async def report(self, result: StageResult) -> None:
        """Record what a node measured."""
        if result.node not in self._sessions:
            raise UnknownNodeError(f"node {result.node} has not arrived here")
        self._sessions[result.node].record_result(result, self._clock())
        self._wake()

    def _wake(self, *nodes: str) -> None:
        """Wake the waiters for any event, and the polls of these nodes."""
        for key in (_ANY_EVENT, *nodes):
            event = self._events.pop(key, None)
            if event is not None:
                event.set()

    async def _wait_for_event(self, key: str, deadline: float | None) -> None:
        event = self._events.setdefault(key, asyncio.Event())
        try:
            await asyncio.wait_for(event.wait(), None if deadline is None else max(0.0, deadline - self._clock()))
        except TimeoutError:
            return

    async def _wait_until_empty(self, missing: Callable[[], set[str]], timeout_s: float) -> set[str]:
        deadline = self._clock() + timeout_s
        while (absent := missing()) and self._clock() < deadline:
            await self._wait_for_event(_ANY_EVENT, deadline)
        return absent
