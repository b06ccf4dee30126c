"""An agent that stands still asks its neighbours, itself and through others; the agents' own server answers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import pytest

from everstep.runtime.agent import neighbours
from everstep.runtime.agent.neighbours import NeighbourWatch, Questions, make_answer
from everstep.runtime.agent.peer_server import application
from everstep.runtime.agent.progress_monitor import Progress
from everstep.runtime.net.tls import Credentials
from everstep.runtime.net.token_gate import TokenGate, application_of, listen
from everstep.runtime.protocol.rounds import Neighbour
from tests.credentials import credentials
from tests.fake_agent import seat

DEADLINE_S = 20
BOTH = pytest.mark.parametrize("trusted", [Credentials("t"), credentials()], ids=["clear", "TLS"])


@asynccontextmanager
async def asking(trusted: Credentials) -> AsyncIterator[Questions]:
    """Questions with the job's token."""
    trust = aiohttp.TCPConnector(ssl=trusted.client or True)
    async with aiohttp.ClientSession(headers=trusted.headers, connector=trust) as session:
        yield Questions(lambda: session, trusted.scheme)


@asynccontextmanager
async def agent(name: str, trusted: Credentials, questions: Questions) -> AsyncIterator[Neighbour]:
    """An agent's server."""
    gate, listener = TokenGate(trusted), listen("127.0.0.1", 0)
    with ThreadPoolExecutor(1) as threads:
        app = application(cast(Any, None), gate, threads, make_answer(name, questions))
        async with gate.serve(application_of(app), listener):
            yield Neighbour(name, f"127.0.0.1:{listener.getsockname()[1]}")


@asynccontextmanager
async def frozen_neighbour(name: str) -> AsyncIterator[Neighbour]:
    """Connections to it are made by the kernel, and nobody answers."""
    with listen("127.0.0.1", 0) as listener:
        yield Neighbour(name, f"127.0.0.1:{listener.getsockname()[1]}")


@BOTH
def test_an_agent_answers_for_itself_and_asks_others_on_request(trusted: Credentials) -> None:
    async def story() -> None:
        async with (
            asking(trusted) as questions,
            agent("a", trusted, questions) as a,
            agent("b", trusted, questions) as b,
        ):
            assert await questions.is_answered(b, DEADLINE_S)
            assert await questions.is_answered(b, DEADLINE_S, through=a.address)

    asyncio.run(story())


@BOTH
def test_who_has_the_address_of_another_node_does_not_answer_for_it(trusted: Credentials) -> None:
    async def story() -> None:
        async with (
            asking(trusted) as questions,
            agent("a", trusted, questions) as a,
            agent("b", trusted, questions) as b,
        ):
            other = Neighbour("c", b.address)
            assert not await questions.is_answered(other, DEADLINE_S)
            assert not await questions.is_answered(other, DEADLINE_S, through=a.address)

    asyncio.run(story())


def test_without_the_jobs_token_nobody_is_told() -> None:
    async def story() -> None:
        trusted = Credentials("t")
        async with asking(Credentials("guessed")) as questions, agent("a", trusted, questions) as a:
            assert not await questions.is_answered(a, DEADLINE_S)

    asyncio.run(story())


def test_a_frozen_agent_does_not_answer() -> None:
    async def story() -> None:
        trusted = Credentials("t")
        async with asking(trusted) as questions, agent("a", trusted, questions) as a, frozen_neighbour("b") as b:
            assert not await questions.is_answered(b, 0.1)
            assert not await questions.is_answered(b, 2 * neighbours.SILENT_S, through=a.address)

    asyncio.run(story())


class Answers(Questions):
    """Who answers whom is decided by the test: pairs of (asker, asked), the node itself is `me`."""

    def __init__(self, *reached: tuple[str, str]) -> None:
        self.reached = set(reached)
        self.asked: list[tuple[str, str]] = []

    async def is_answered(self, whom: Neighbour, timeout_s: float, through: str = "") -> bool:
        """The helper must be reached, too."""
        asker = through or "me"
        self.asked.append((asker, whom.node))
        return (asker, whom.node) in self.reached and (asker == "me" or ("me", asker) in self.reached)


class Node:
    """One that asks b and c."""

    def __init__(self, answers: Answers) -> None:
        self.still_s, self.waits, self.has_beacon = 0.0, False, True
        self.changed = asyncio.Event()
        self.answers = answers
        self.watch = NeighbourWatch(answers, self._progress, lambda: self.waits, self.changed.set)
        self.watch.take_seat(seat(1, neighbours=(Neighbour("b", "b"), Neighbour("c", "c"))))

    def _progress(self) -> Progress:
        return Progress(7, "", self.still_s, True, self.has_beacon)

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait for it."""
        async with asyncio.timeout(DEADLINE_S):
            while not ready():
                await asyncio.sleep(0)

    async def met(self) -> None:
        """All neighbours have answered once."""
        await self.until(lambda: len(self.answers.asked) >= 2)
        self.answers.asked.clear()

    def silent(self) -> tuple[str, ...]:
        """As its heartbeats say."""
        return self.watch.as_fields().get("silent", ())


def run(monkeypatch: pytest.MonkeyPatch, answers: Answers, story: Callable[[Node], Any]) -> None:
    """The story of a node whose waits are short."""
    for name in ("LOOK_S", "AGAIN_S"):
        monkeypatch.setattr(neighbours, name, 0.001)
    monkeypatch.setattr(neighbours, "AWAY_S", DEADLINE_S)

    async def whole() -> None:
        node = Node(answers)
        watching = asyncio.create_task(node.watch.run())
        try:
            await story(node)
        finally:
            watching.cancel()

    asyncio.run(whole())


def test_a_neighbour_that_nobody_reaches_is_silent_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(node: Node) -> None:
        await node.met()
        node.answers.reached = {("me", "c")}
        node.still_s = neighbours.STILL_S
        await node.until(lambda: node.silent() == ("b",))
        assert node.changed.is_set()
        assert ("c", "b") in node.answers.asked, "it was asked through the other, too"
        node.answers.reached.add(("me", "b"))
        await node.until(lambda: node.silent() == ())

    run(monkeypatch, Answers(("me", "b"), ("me", "c")), story)


def test_a_neighbour_that_another_reaches_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(node: Node) -> None:
        await node.met()
        node.answers.reached = {("me", "c"), ("c", "b")}
        node.still_s = neighbours.STILL_S
        await node.until(lambda: node.answers.asked.count(("c", "b")) > 2)
        assert not node.changed.is_set()

    run(monkeypatch, Answers(("me", "b"), ("me", "c")), story)


@pytest.mark.parametrize(("still_s", "has_beacon"), [(0.0, True), (DEADLINE_S, False)])
def test_who_moves_or_does_not_show_whether_it_moves_asks_nobody(
    monkeypatch: pytest.MonkeyPatch, still_s: float, has_beacon: bool
) -> None:
    async def story(node: Node) -> None:
        node.still_s, node.has_beacon = still_s, has_beacon
        looks = 0

        def count_look() -> bool:
            nonlocal looks
            looks += 1
            return False

        node.watch._waits = count_look
        await node.met()
        await node.until(lambda: looks > 10)
        assert node.answers.asked == []

    run(monkeypatch, Answers(("me", "b"), ("me", "c")), story)


def test_a_neighbour_that_never_answered_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(node: Node) -> None:
        node.still_s = neighbours.STILL_S
        await node.until(lambda: node.answers.asked.count(("me", "b")) > 3)
        assert not node.changed.is_set()

    run(monkeypatch, Answers(("me", "c")), story)


def test_who_answered_before_a_round_without_it_can_be_silent_at_once_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(node: Node) -> None:
        await node.met()
        node.watch.take_seat(seat(2))
        node.answers.reached, node.still_s = {("me", "c")}, neighbours.STILL_S
        node.watch.take_seat(seat(3, neighbours=(Neighbour("b", "b"), Neighbour("c", "c"))))
        await node.until(lambda: node.silent() == ("b",))

    run(monkeypatch, Answers(("me", "b"), ("me", "c")), story)


def test_a_new_seat_is_followed_by_questions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(node: Node) -> None:
        monkeypatch.setattr(neighbours, "AGAIN_S", 10 * DEADLINE_S)
        monkeypatch.setattr(neighbours, "LOOK_S", 10 * DEADLINE_S)
        await node.met()
        node.watch.take_seat(seat(2, neighbours=(Neighbour("b", "b"),)))
        await node.until(lambda: node.answers.asked == [("me", "b")])

    run(monkeypatch, Answers(("me", "b"), ("me", "c")), story)


def test_who_waits_for_a_seat_asks_its_last_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "STILL_S", 0.01)

    async def story(node: Node) -> None:
        await node.met()
        node.answers.reached = {("me", "c")}
        node.waits = True
        await node.until(lambda: node.silent() == ("b",))

    run(monkeypatch, Answers(("me", "b"), ("me", "c")), story)


def test_what_was_asked_while_the_agent_did_not_run_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(node: Node) -> None:
        await node.met()
        monkeypatch.setattr(neighbours, "SILENT_S", -1.0)
        monkeypatch.setattr(neighbours, "AWAY_S", 0.5)
        node.answers.reached = set()
        node.still_s = neighbours.STILL_S
        await node.until(lambda: node.answers.asked.count(("me", "b")) > 2)
        assert not node.changed.is_set()

    run(monkeypatch, Answers(("me", "b"), ("me", "c")), story)
