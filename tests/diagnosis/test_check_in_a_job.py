"""Checks as a master makes them: one coordinator, nodes that come again, a new node with a trusted partner."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from everstep.runtime.diagnosis import admission_client
from everstep.runtime.diagnosis.coordinator import Coordinator
from everstep.runtime.diagnosis.errors import CoordinatorLostError, NoQuorumError, UnknownNodeError
from everstep.runtime.diagnosis.evidence import Measurement
from everstep.runtime.diagnosis.measurement_process import MeasurementProcess, start_measurement_process
from everstep.runtime.diagnosis.messages import Arrive, Ask, Over, Stage, StageResult, Stop, Work
from everstep.runtime.diagnosis.node import check_node
from everstep.runtime.diagnosis.switchbox import SwitchboxSpec
from everstep.runtime.diagnosis.verdicts import Health, Verdict
from everstep.runtime.net.tls import Credentials
from everstep.runtime.store import StoreError


class Link:
    """Stands in for a way to a coordinator."""

    def __init__(self, *_: object, **__: object) -> None: ...

    async def arrive(self, arrive: Arrive) -> None: ...


@asynccontextmanager
async def ready() -> AsyncIterator[admission_client.StartMeasuring]:
    yield start_measurement_process


async def somewhere() -> tuple[str, int]:
    """The address of the check."""
    return "h", 1


class Measuring:
    """Stands in for the process that measures: all work succeeds at once. Tells what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._results: asyncio.Queue[StageResult] = asyncio.Queue()

    def hide_devices(self, node: str) -> None:
        self.asked.append("hide devices")

    def start_alone(self, node: str, host: str, address: str, order: Work, box: SwitchboxSpec | None) -> None:
        self.asked.append("work with the switch box" if box else "work")
        measurement = Measurement(node, host, 0.5, 0.01)
        self._results.put_nowait(StageResult(node, order.round, Stage.ALONE, measurement))

    def end(self, node: str) -> None: ...

    async def count_devices(self) -> int:
        return 2

    async def next_result(self, node: str) -> StageResult:
        return await self._results.get()

    def process(self) -> MeasurementProcess:
        return cast(MeasurementProcess, self)


def test_a_new_node_is_checked_with_a_healthy_partner_and_named_when_it_fails(tmp_path: Path) -> None:
    fault = "check.all_reduce,node=worker-1-1,round=1=raise"
    environment = {**os.environ, "EVERSTEP_FAULT": fault, "EVERSTEP_FAULT_DIR": str(tmp_path)}

    async def story() -> None:
        coordinator = Coordinator()
        async with start_measurement_process(environment) as measuring:
            for new, expected_health in (("worker-1-0", Health.HEALTHY), ("worker-1-1", Health.FAULTY)):
                nodes = ["worker-0-0", new]
                parts = [check_node(coordinator, Arrive(node, "here", "127.0.0.1"), measuring) for node in nodes]
                ends = asyncio.gather(*parts)
                assert await coordinator.wait_for_arrivals(nodes, 60.0) == set()
                verdicts = await coordinator.check(nodes, trusted_names=nodes[:1])
                assert verdicts[1].health in (
                    {expected_health, Health.STRAGGLER} if expected_health is Health.HEALTHY else {expected_health}
                )
                assert not verdicts[0].avoid
                assert [over.verdict for over in await ends] == verdicts
        assert [mark.name for mark in tmp_path.iterdir()] == ["check.all_reduce"]

    asyncio.run(story())


def test_nodes_that_are_all_trusted_need_no_work() -> None:
    async def story() -> None:
        coordinator = Coordinator()
        nodes = ["a", "b"]
        for node in nodes:
            await coordinator.arrive(Arrive(node, node, "127.0.0.1"))
        verdicts = await coordinator.check(nodes, trusted_names=nodes)
        assert [verdict.health for verdict in verdicts] == [Health.HEALTHY, Health.HEALTHY]

    asyncio.run(story())


def test_a_node_that_is_lost_is_given_up_at_once() -> None:
    async def story() -> None:
        coordinator = Coordinator()
        await coordinator.arrive(Arrive("a", "a", "127.0.0.1"))
        with pytest.raises(UnknownNodeError):
            await coordinator.order(Ask("b"))
        checking = asyncio.create_task(coordinator.check(["a"]))
        order = await coordinator.order(Ask("a"))
        assert order is not None
        coordinator.mark_lost("a", "its pod was deleted")
        verdicts = await checking
        assert (verdicts[0].health, verdicts[0].reason) == (Health.FAULTY, "its pod was deleted")

    asyncio.run(story())


def test_without_its_process_a_node_is_told_to_have_died_and_not_waited_for() -> None:
    async def story() -> None:
        coordinator = Coordinator()
        async with start_measurement_process() as measuring:
            end = asyncio.create_task(check_node(coordinator, Arrive("a", "a", "127.0.0.1"), measuring))
            assert await coordinator.wait_for_arrivals(["a"], 60.0) == set()
            measuring.kill()
            verdicts = await coordinator.check(["a"])
            assert verdicts[0].health is Health.FAULTY
            assert verdicts[0].reason == "the process that measures was ended"
            assert (await end).verdict.avoid

    asyncio.run(story())


def test_a_node_that_asks_for_nothing_is_given_up_long_before_its_time_is_up() -> None:
    async def story() -> None:
        coordinator = Coordinator(timeout_s=7200.0, silence_s=0.2)
        for node in ("a", "b"):
            await coordinator.arrive(Arrive(node, node, "127.0.0.1"))
        checking = asyncio.create_task(coordinator.check(["a", "b"], trusted_names=["b"]))
        order = await coordinator.order(Ask("a"))
        assert isinstance(order, Work)
        await coordinator.report(StageResult("a", 1, Stage.ALONE, Measurement("a", "a", 0.5, 0.01)))
        over = await coordinator.order(Ask("a", order.number))
        assert isinstance(over, Stop | Over)
        verdicts = await checking
        assert [verdict.health for verdict in verdicts] == [Health.HEALTHY, Health.FAULTY]
        assert verdicts[1].reason == "it asked for no orders for 0.2 s"

    asyncio.run(story())


def test_a_node_that_takes_long_to_import_torch_is_not_lost_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    coordinator = Coordinator(clock=lambda: now, silence_s=30.0)
    monkeypatch.setattr(admission_client, "HttpLink", lambda *_, **__: coordinator)

    async def story() -> None:
        async def let_others_run() -> None:
            for _turn in range(20):
                await asyncio.sleep(0)

        @asynccontextmanager
        async def start() -> AsyncIterator[MeasurementProcess]:
            nonlocal now
            await let_others_run()
            now += 100.0
            await coordinator.arrive(Arrive("b", "b", "127.0.0.1"))  # The check looks for silent nodes.
            await let_others_run()
            yield Measuring().process()

        @asynccontextmanager
        async def prepare() -> AsyncIterator[admission_client.StartMeasuring]:
            yield start

        part = admission_client.AdmissionClient("a", "a", "127.0.0.1", Credentials("secret"), somewhere, 60.0)
        being_checked = asyncio.create_task(part.run(prepare, lambda _: None))
        async with asyncio.timeout(60):
            while not (nodes := coordinator.ready_nodes()):
                await coordinator.wait_for_event(1.0)
            (verdict,) = await coordinator.check(nodes)
            assert (verdict.health, verdict.reason) == (Health.HEALTHY, "works alone and with its group")
            assert now == 100.0
        being_checked.cancel()
        await asyncio.gather(being_checked, return_exceptions=True)

    asyncio.run(story())


def test_a_node_that_has_joined_leaves_its_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        coordinator, measuring = Coordinator(), Measuring()
        monkeypatch.setattr(admission_client, "HttpLink", lambda *_, **__: coordinator)

        @asynccontextmanager
        async def prepare() -> AsyncIterator[admission_client.StartMeasuring]:
            yield lambda: nullcontext(measuring.process())

        box = SwitchboxSpec(((0, 1),))
        part = admission_client.AdmissionClient("a", "a", "127.0.0.1", Credentials("secret"), somewhere, 60.0, box)
        being_checked = asyncio.create_task(part.run(prepare, lambda _: None))
        async with asyncio.timeout(60):
            for _check in range(2):
                while not (nodes := coordinator.ready_nodes()):
                    await coordinator.wait_for_event(1.0)
                assert not (await coordinator.check(nodes))[0].avoid
                await part.verdict
        assert measuring.asked == ["work with the switch box", "hide devices", "work"]
        being_checked.cancel()
        await asyncio.gather(being_checked, return_exceptions=True)

    asyncio.run(story())


@pytest.mark.parametrize("error", [UnknownNodeError("a new master"), CoordinatorLostError("no answer")], ids=type)
def test_a_node_outlives_any_number_of_masters_that_answered_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = Over(1, Verdict("a", "a", Health.HEALTHY, "so it is", False, 0.5))
    outcomes = iter([error, error, over])

    async def wait_for_order(*_: object) -> Over:
        outcome = next(outcomes, None)
        if outcome is None:
            await asyncio.Event().wait()
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, Over)
        return outcome

    monkeypatch.setattr(admission_client, "HttpLink", Link)
    monkeypatch.setattr(admission_client, "wait_for_order", wait_for_order)
    monkeypatch.setattr(admission_client, "_RETRY_PAUSE_S", 0.0)

    async def story() -> None:
        part = admission_client.AdmissionClient("a", "a", "127.0.0.1", Credentials("secret"), somewhere, 0.0)
        being_checked = asyncio.create_task(part.run(ready, lambda _: None))
        async with asyncio.timeout(60):
            assert await part.verdict == over.verdict, "no time is left, and each time somebody answers"
        being_checked.cancel()
        await asyncio.gather(being_checked, return_exceptions=True)

    asyncio.run(story())


def test_a_store_that_cannot_be_read_for_a_while_ends_no_nodes_part_in_the_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = Over(1, Verdict("a", "a", Health.HEALTHY, "so it is", False, 0.5))
    answers: list[tuple[str, int] | StoreError] = [StoreError("busy"), ("h", 1), StoreError("busy"), ("h", 2)]
    answers_in_turn, checks, third = iter(answers), itertools.count(1), asyncio.Event()

    async def where() -> tuple[str, int]:
        answer = next(answers_in_turn, ("h", 3))
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def wait_for_order(*_: object) -> Over:
        if next(checks) == 3:
            third.set()
            await asyncio.Event().wait()
        return over

    monkeypatch.setattr(admission_client, "HttpLink", Link)
    monkeypatch.setattr(admission_client, "wait_for_order", wait_for_order)
    monkeypatch.setattr(admission_client, "_RETRY_PAUSE_S", 0.0)

    async def story() -> None:
        part = admission_client.AdmissionClient("a", "a", "127.0.0.1", Credentials("secret"), where, 60.0)
        said: list[str] = []
        running = asyncio.create_task(part.run(ready, said.append))
        async with asyncio.timeout(60):
            assert await part.verdict == over.verdict
            await third.wait()
        assert not said
        assert not running.done(), "it stands by as a partner"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("error", "expected_lines"),
    [
        (ValueError("bad token"), ["this node is no longer a partner in node checks: bad token"]),
        (RuntimeError(), ["this node is no longer a partner in node checks: RuntimeError"]),
        (NoQuorumError("the check is called off"), []),
    ],
    ids=["refused", "without a text", "called off"],
)
def test_a_partner_that_can_be_none_any_more_says_why(
    error: Exception, expected_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    over = Over(1, Verdict("a", "a", Health.HEALTHY, "so it is", False, 0.5))
    outcomes = iter([over, error])

    async def where() -> tuple[str, int]:
        return "h", 1

    async def wait_for_order(*_: object) -> Over:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(admission_client, "HttpLink", Link)
    monkeypatch.setattr(admission_client, "wait_for_order", wait_for_order)

    async def story() -> None:
        part = admission_client.AdmissionClient("a", "a", "127.0.0.1", Credentials("secret"), where, 60.0)
        said: list[str] = []
        async with asyncio.timeout(60):
            await part.run(ready, said.append)
        assert part.verdict.result() == over.verdict
        assert said == expected_lines

    asyncio.run(story())


def test_a_node_that_stands_by_has_no_process_until_a_check_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[str] = []

    async def where() -> tuple[str, int]:
        return "h", 1

    async def story() -> None:
        coordinator = Coordinator()
        monkeypatch.setattr(admission_client, "HttpLink", lambda *_, **__: coordinator)
        async with start_measurement_process() as measuring, asyncio.timeout(60):

            @asynccontextmanager
            async def start() -> AsyncIterator[MeasurementProcess]:
                running.append("one")
                yield measuring
                running.pop()

            @asynccontextmanager
            async def prepare() -> AsyncIterator[admission_client.StartMeasuring]:
                yield start

            part = admission_client.AdmissionClient("a", "a", "127.0.0.1", Credentials("secret"), where, 60.0)
            being_checked = asyncio.create_task(part.run(prepare, lambda _: None))
            for _check in range(2):
                while not (nodes := coordinator.ready_nodes()):
                    await coordinator.wait_for_event(60.0)
                assert not running
                assert not (await coordinator.check(nodes))[0].avoid
                await part.verdict
            being_checked.cancel()
            await asyncio.gather(being_checked, return_exceptions=True)

    asyncio.run(story())


def test_who_stops_waiting_for_the_process_that_measures_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    processes_made = asyncio.Queue[asyncio.subprocess.Process]()
    create = asyncio.create_subprocess_exec

    async def record_command(*command: str, **more: Any) -> asyncio.subprocess.Process:
        process = await create(*command, **more)
        processes_made.put_nowait(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", record_command)

    async def story() -> None:
        waiting = asyncio.create_task(start_measurement_process().__aenter__())
        async with asyncio.timeout(60):
            process = await processes_made.get()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert process.returncode is not None

    asyncio.run(story())
