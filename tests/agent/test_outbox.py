"""Telemetry is told again to a new master, until one has stored it."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from everstep.runtime.agent.master_dialogue import MasterDialogue
from everstep.runtime.agent.progress_monitor import Progress
from everstep.runtime.agent.telemetry_sender import TelemetrySender
from everstep.runtime.protocol.messages import Action, Directive, Heartbeat


class Client:
    """Answers as a master of `epoch` that has stored what came up to `stored`."""

    def __init__(self) -> None:
        self.epoch, self.answers, self.stored = 0, 1, 0
        self.told: list[list[int]] = []
        self.still: list[float] = []
        self.silent: tuple[str, ...] = ()

    async def send_heartbeat(self, message: Callable[[], Heartbeat]) -> Directive:
        beat = message()
        self.epoch = self.answers
        self.told.append([int(line["iteration"]) for line in beat.telemetry])
        self.still.append(beat.still_s)
        self.silent = beat.silent
        return Directive(self.epoch, 0, Action.CONTINUE, stored=self.stored)


def make_sender() -> tuple[TelemetrySender, Client]:
    client = Client()
    progress = Progress(0, "", 70.0, True, True)
    outbox = TelemetrySender(
        cast(Any, client),
        MasterDialogue("n", 1),
        lambda text: None,
        lambda ack: outbox.acknowledge(ack),
        lambda: progress,
        lambda: {"silent": ("m",), "silent_s": 2.0},
    )
    return outbox, client


def test_a_master_is_told_each_line_once() -> None:
    outbox, client = make_sender()
    for iteration in (1, 2):
        outbox.add({"iteration": iteration})
        asyncio.run(outbox.flush())
    asyncio.run(outbox.flush())
    assert client.told == [[1], [2]]


def test_a_master_is_told_nothing_before_the_node_has_joined() -> None:
    outbox, client = make_sender()
    outbox.add({"iteration": 1})

    async def join_later() -> None:
        sending = asyncio.create_task(outbox.run())
        await asyncio.sleep(0.1)
        assert not client.told
        outbox._dialogue.is_known = True
        while not client.told:
            await asyncio.sleep(0.01)
        sending.cancel()

    asyncio.run(asyncio.wait_for(join_later(), 30))
    assert client.told == [[1]]


def test_telemetry_takes_back_nothing_that_the_node_says_of_its_neighbours() -> None:
    outbox, client = make_sender()
    outbox.add({"iteration": 1})
    asyncio.run(outbox.flush())
    assert client.silent == ("m",)


def test_what_a_dead_master_had_not_stored_its_successor_is_told() -> None:
    outbox, client = make_sender()
    for iteration in (1, 2):
        outbox.add({"iteration": iteration})
    asyncio.run(outbox.flush())
    client.answers = 2
    outbox.add({"iteration": 3})
    asyncio.run(outbox.flush())
    assert client.told == [[1, 2], [3], [1, 2]]


def test_what_is_stored_is_not_told_again() -> None:
    outbox, client = make_sender()
    for iteration in (1, 2):
        outbox.add({"iteration": iteration})
    asyncio.run(outbox.flush())
    client.stored = 1 << 60
    outbox.add({"iteration": 3})
    asyncio.run(outbox.flush())
    client.answers, client.stored = 2, 0
    outbox.add({"iteration": 4})
    asyncio.run(outbox.flush())
    assert client.told == [[1, 2], [3], [4]]


def test_what_is_told_while_all_stand_still_does_not_look_like_a_movement() -> None:
    outbox, client = make_sender()
    outbox.add({"iteration": 1})
    asyncio.run(outbox.flush())
    assert client.still == [70.0]
