"""Telemetry is stored in batches; agents hear how far."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from everstep.runtime.master.telemetry import LineFilter, Telemetry, flush_interval
from everstep.runtime.protocol.messages import Heartbeat
from everstep.runtime.store import StoreError, open_store
from tests.master.shell import TroubledStore, in_virtual_time, passes


def test_a_node_hears_of_what_lies_in_the_store_only(tmp_path: Path) -> None:
    telemetry = Telemetry(open_store(str(tmp_path)), "j", 1)
    telemetry.add("a", [{"n": 7, "loss": 1.0}, {"n": 8, "loss": 0.9}], 10.0)
    assert telemetry.newest_stored("a") == 0
    asyncio.run(telemetry.flush())
    assert (telemetry.newest_stored("a"), telemetry.newest_stored("b")) == (8, 0)
    lines = [
        json.loads(line) for line in (tmp_path / "jobs/j/telemetry/000001-000000001.jsonl").read_text().splitlines()
    ]
    assert [line["n"] for line in lines] == [7, 8]


def test_what_the_store_refuses_is_kept_and_not_called_stored(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    telemetry = Telemetry(store, "j", 1)
    telemetry.add("a", [{"n": 7}], 10.0)
    put, store.put = store.put, _refuse  # type: ignore[method-assign]
    asyncio.run(telemetry.flush())
    assert telemetry.newest_stored("a") == 0
    store.put = put  # type: ignore[method-assign]
    asyncio.run(telemetry.flush())
    assert telemetry.newest_stored("a") == 7


def test_a_young_training_is_stored_more_often() -> None:
    age_s, objects = 0.0, list[float]()
    while age_s < 3600:
        age_s += flush_interval(age_s)
        objects.append(age_s)
    assert objects[:3] == [0.5, 1.0, 1.5]
    assert objects[-1] - objects[-2] == 5.0
    assert len(objects) < 3600 / 5 + 40


def test_a_training_is_stored_as_often_however_long_its_nodes_took_to_start() -> None:
    store = TroubledStore()
    telemetry = Telemetry(store, "j", 1)

    async def story() -> None:
        writing = asyncio.create_task(telemetry.run())
        await passes(600.0)
        for iteration in range(1, 41):
            telemetry.add("a", [{"n": iteration, "iteration": iteration, "seconds": 0.1}], 0.0)
            await passes(0.1)
        writing.cancel()

    in_virtual_time(store, story)
    assert len(store.objects) == 8, "every half of a second of its four"


def test_a_line_that_is_sent_again_counts_once_and_another_agent_numbers_its_own() -> None:
    lines = LineFilter()

    def new_lines(life: int, *numbers: int) -> list[object]:
        beat = Heartbeat("a", 1, telemetry=tuple({"n": number} for number in numbers), life=life)
        return [line["n"] for line in lines.new_lines(beat)]

    assert new_lines(1, 5, 6) == [5, 6]
    assert new_lines(1, 5, 6, 7) == [7]
    assert new_lines(2, 3, 4) == [3, 4]
    assert new_lines(2, 4) == []
    assert lines.new_lines(Heartbeat("b", 1, telemetry=({"loss": 1.0},))) == ({"loss": 1.0},)


def test_what_waits_to_be_written_when_the_job_ends_is_written_by_the_last_flush(tmp_path: Path) -> None:
    telemetry, begun, may_end = Telemetry(open_store(str(tmp_path)), "j", 1), threading.Event(), threading.Event()
    telemetry.add("a", [{"n": 7}], 10.0)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        other = loop.run_in_executor(None, lambda: (begun.set(), may_end.wait()))
        while not begun.is_set():
            await asyncio.sleep(0)
        writing = asyncio.create_task(telemetry.flush())
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        may_end.set()
        await other
        await telemetry.flush()

    asyncio.run(story())
    assert telemetry.newest_stored("a") == 7


def _refuse(*_: object) -> None:
    raise StoreError("no")
