"""A node without a seat: when it warms up, and when its join need not wait for that."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.agent import spare_keeper
from everstep.runtime.agent.output import Pipe
from everstep.runtime.agent.settings import Settings
from everstep.runtime.agent.spare_keeper import SpareKeeper
from everstep.runtime.agent.spares import Spare, Spares
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.protocol.survivor_link import SPARE_VARIABLE, Rehearsed
from everstep.runtime.protocol.training import Training

DEADLINE_S = 60.0
TRAINS = Training(3, nodes=2, workers=4, role_workers=4, trains=True, survives=True)
STARTS = Training(3, nodes=2, workers=4, role_workers=4)
SETTINGS = Settings(
    job="job", token="secret", master="http://127.0.0.1:1", store="store", node="a", role="worker", host="h", slots=2,
    command=("train.py",), threads="", spares=1,
)  # fmt: skip


class Node:
    """A node whose master answers as the test says, and whose spares are warm as soon as they are started."""

    def __init__(self, folder: Path, *answers: Training, warms: bool = True, settings: Settings = SETTINGS) -> None:
        self.spares = Spares(lambda line: None)
        self.started: list[tuple[int, Mapping[str, str]]] = []
        self.bound_to: list[Sequence[int]] = []
        self.unseated: set[int] = set()
        self._answers, self._warms, self._numbers = list(answers), warms, 0
        self.seat: Seat | None = None
        self.reserved: list[int] = []
        self.keeper = SpareKeeper(
            settings, folder, self, self._ask, lambda: self.seat, lambda seat: False, self._reserve
        )

    async def _reserve(self, size: int) -> None:
        self.reserved.append(size)
        raise RuntimeError("no room")

    async def _ask(self) -> Training:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def unseated_ranks(self) -> set[int]:
        """Whose workers wait."""
        return self.unseated

    def start_spare(
        self, local_rank: int, environment: Mapping[str, str], command: Sequence[str], cpus: Sequence[int]
    ) -> None:
        """Start one."""
        self._numbers += 1
        self.started.append((local_rank, environment))
        self.bound_to.append(cpus)
        self.spares.add(self._numbers, Spare(local_rank, command, cpus, Pipe(lambda lines: None)))
        if self._warms:
            self.spares.note_rehearsed(self._numbers, Rehearsed(0.1, state_bytes=77))
        else:
            self.spares.bury(self._numbers, 1, 0.0)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK_EVERY_S", "_ASK_EVERY_S"):
        monkeypatch.setattr(spare_keeper, name, 0.001)


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await story()

    asyncio.run(within())


def test_a_node_that_comes_while_a_round_trains_joins_when_each_of_its_workers_is_warm(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(tmp_path, STARTS, STARTS, TRAINS)
        await node.keeper.warm_up()
        assert [local_rank for local_rank, _ in node.started] == [0, 1]
        environment = node.started[0][1]
        assert (environment["WORLD_SIZE"], environment[SPARE_VARIABLE]) == ("4", "1")
        assert "MASTER_PORT" not in environment
        assert node.reserved == [77]

    run(story)


@pytest.mark.parametrize(
    "answer", [Training(0), Training(3, 2, 4, 4, trains=True)], ids=["no round", "a script that cannot survive"]
)
def test_a_node_joins_at_once_if_nobody_trains_or_it_cannot_warm_up(tmp_path: Path, answer: Training) -> None:
    async def story() -> None:
        node = Node(tmp_path, answer)
        await node.keeper.warm_up()
        assert node.started == []

    run(story)


def test_a_round_that_ends_while_a_node_warms_up_is_not_kept_waiting(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(tmp_path, STARTS, TRAINS, Training(0))
        await node.keeper.warm_up()
        assert len(node.started) == 1

    run(story)


def test_a_node_whose_spare_fails_joins_without_it(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(tmp_path, TRAINS, warms=False)
        await node.keeper.warm_up()
        assert len(node.started) == 1

    run(story)


def test_a_node_that_waits_for_a_seat_keeps_a_spare_for_each_worker_while_others_train(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(tmp_path, Training(0), STARTS, TRAINS)
        keeping = asyncio.create_task(node.keeper.run())
        while len(node.started) < 2:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        keeping.cancel()
        assert len(node.started) == 2
        assert node.reserved == [77]

    run(story)


def test_a_node_whose_workers_wait_for_a_seat_keeps_spares_for_the_others_alone(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(tmp_path, TRAINS)
        node.unseated = {0, 1}
        keeping = asyncio.create_task(node.keeper.run())
        await asyncio.sleep(0.02)
        assert node.started == []
        node.unseated = {0}
        while not node.started:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        keeping.cancel()
        assert [local_rank for local_rank, _ in node.started] == [1]

    run(story)


def test_a_spare_rehearses_a_part_that_no_other_does_on_the_cpus_of_its_worker(tmp_path: Path) -> None:
    cpus = ((0, 2), (1, 3))

    async def story() -> None:
        node = Node(tmp_path, TRAINS, settings=replace(SETTINGS, cpus=cpus))
        keeping = asyncio.create_task(node.keeper.run())
        while len(node.started) < 2:
            await asyncio.sleep(0.001)
        assert node.spares.take(0, SETTINGS.command, ()) is None
        assert node.spares.take(0, SETTINGS.command, cpus[0]) is not None
        while len(node.started) < 3:
            await asyncio.sleep(0.001)
        keeping.cancel()
        assert [local_rank for local_rank, _ in node.started] == [0, 1, 0]
        assert node.bound_to == [cpus[0], cpus[1], cpus[0]]

    run(story)


@pytest.mark.parametrize("has_devices", [False, True])
def test_a_spare_takes_another_local_ranks_place_unless_each_has_a_device_of_its_own(has_devices: bool) -> None:
    async def story() -> None:
        spares = Spares(lambda line: None, has_devices)
        spares.add(7, Spare(0, SETTINGS.command, (), Pipe(lambda lines: None)))
        spares.note_rehearsed(7, Rehearsed(0.1))
        takes_place_of = [spares.take(local_rank, SETTINGS.command, ()) is not None for local_rank in (1, 0)]
        assert takes_place_of == [not has_devices, has_devices]

    run(story)
