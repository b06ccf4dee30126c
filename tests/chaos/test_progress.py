"""The moment of a fault is waited for as long as its training gets on, in virtual time."""

import asyncio
import json

import pytest

from everstep.runtime.chaos import NotFiredError
from everstep.runtime.chaos.progress import TOLD_AFTER_S, Progress
from everstep.runtime.job.state import State
from tests.master.shell import TroubledStore, in_virtual_time, passes

PATIENCE_S = 100.0


def tell(store: TroubledStore, iteration: int) -> None:
    """The store's next object of telemetry."""
    line = json.dumps({"v": 1, "time": 0.0, "node": "n", "iteration": iteration, "seconds": 90.0})
    store.put(f"jobs/j/telemetry/000001-{iteration:06d}.jsonl", line.encode())


def test_a_training_that_gets_on_may_take_longer_than_the_patience() -> None:
    store = TroubledStore()
    progress = Progress(store, "j")

    async def story() -> int:
        waiting = asyncio.create_task(
            progress.wait_while_it_goes_on(lambda: progress.iteration() >= 5, "iteration 5", PATIENCE_S)
        )
        for iteration in range(1, 6):
            await passes(0.9 * PATIENCE_S)
            tell(store, iteration)
        await waiting
        return progress.iteration()

    assert in_virtual_time(store, story) == 5


def test_a_training_that_does_not_get_on_is_not_waited_for() -> None:
    store = TroubledStore()
    progress = Progress(store, "j")

    async def story() -> float:
        began = asyncio.get_running_loop().time()
        tell(store, 1)
        with pytest.raises(NotFiredError, match="iteration 5: not yet, and the training has not got on for 100 s"):
            await progress.wait_while_it_goes_on(lambda: progress.iteration() >= 5, "iteration 5", PATIENCE_S)
        return asyncio.get_running_loop().time() - began

    assert in_virtual_time(store, story) == pytest.approx(PATIENCE_S, abs=1.0)


def test_what_is_waited_for_is_told_once_if_it_takes_long() -> None:
    store, told = TroubledStore(), list[str]()
    progress = Progress(store, "j", told.append)

    async def story() -> None:
        began = asyncio.get_running_loop().time()
        await progress.wait(lambda: asyncio.get_running_loop().time() > began + TOLD_AFTER_S / 2, "it is soon", 60)
        with pytest.raises(NotFiredError, match="a node trains: not within 60 s"):
            await progress.wait(lambda: False, "a node trains", 60)
        with pytest.raises(NotFiredError):
            await progress.wait_while_it_goes_on(lambda: False, "iteration 5", PATIENCE_S)

    in_virtual_time(store, story)
    assert told == [
        "waits until a node trains; gives up after 60 s",
        "waits until iteration 5; gives up after 100 s without progress",
    ]


def test_a_state_that_was_read_a_moment_ago_is_not_read_again_but_later_ones_are() -> None:
    store = TroubledStore()
    known = State(time=5.0)
    progress = Progress(store, "j", just_read=known)
    assert progress.state() is known
    assert progress.state() == State()
