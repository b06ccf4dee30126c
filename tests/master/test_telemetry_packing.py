"""Telemetry of months is bounded, and the report tells the same of it."""

import asyncio
import json
from pathlib import Path

import pytest

from everstep.runtime.job import records as job
from everstep.runtime.master import telemetry
from everstep.runtime.master.telemetry import (
    FIRST_ITERATIONS,
    ITERATION_GROUPS,
    Line,
    Telemetry,
    newest_number,
    thin_lines,
)
from everstep.runtime.report.history import history
from everstep.runtime.report.ledger import ledger
from everstep.runtime.store import DirectoryStore
from tests.report.test_history import at, round_broken, round_formed

RECORDS = [
    round_formed(0, 1),
    round_broken(2000, 1, 2000),
    round_formed(2010, 2, 1990),
    round_broken(5000, 2, 4980),
    round_formed(5005, 3, 4980),
]


def _lines() -> list[Line]:
    """An iteration a second on two ranks; a restart costs 20 s at 2000 and 5 s at 5000."""
    lines_written: list[Line] = []
    for round_, first, iterations, begin in ((1, 1, 2000, 0), (2, 1991, 2990, 2010), (3, 4981, 3000, 5005)):
        for number in range(iterations):
            moment, iteration = begin + number + 1.0, first + number
            facts = at(moment, round_, iteration, seconds=1.0, stall_s=0.1, tokens=100)
            lines_written += [facts, {**facts, "rank": 1}]  # type: ignore[list-item,dict-item]
    return [*lines_written, {"v": 1, "time": 3.0, "kind": "interval", "iteration": 3, "reason": "every 50"}]


def test_old_lines_thinned_tell_the_same_rounds_restarts_and_seconds() -> None:
    lines = _lines()
    few = thin_lines(lines)
    assert len(few) <= 3 * (FIRST_ITERATIONS + ITERATION_GROUPS) + 1 < len(lines) / 4
    whole, less = history(RECORDS, lines), history(RECORDS, few)
    assert [(r.seconds, r.lost) for r in less.restarts] == [(r.seconds, r.lost) for r in whole.restarts]
    assert less.intervals == whole.intervals
    assert less.curve[-1].iteration == whole.curve[-1].iteration
    assert sum(point.tokens or 0 for point in less.points) == sum(point.tokens or 0 for point in whole.points)
    ledger_before, ledger_after = ledger(whole, 0, 8005), ledger(less, 0, 8005)
    assert ledger_before is not None
    assert ledger_after is not None
    assert ledger_after.goodput == pytest.approx(ledger_before.goodput)
    assert ledger_after.iterations == ledger_before.iterations
    assert {e.activity: e.seconds for e in ledger_after.entries} == pytest.approx(
        {e.activity: e.seconds for e in ledger_before.entries}, abs=1e-6
    )


def test_thinning_what_is_thin_changes_little() -> None:
    once = thin_lines(_lines())
    assert len(thin_lines(once)) == len(once)
    assert sum(float(line.get("seconds", 0)) for line in thin_lines(once)) == sum(
        float(line.get("seconds", 0)) for line in once
    )


def test_as_months_pass_few_objects_are_left_and_the_newest_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "OBJECTS_PER_PACK", 10)
    monkeypatch.setattr(telemetry, "UNPACKED_OBJECTS", 5)
    store = DirectoryStore(tmp_path)

    async def months() -> None:
        telemetry = Telemetry(store, "j", 1)
        for number in range(1, 101):
            telemetry.add(
                "a", [{"n": number, "iteration": number, "rank": rank, "loss": 1.0} for rank in (0, 1)], number
            )
            await telemetry.flush()

    asyncio.run(months())
    names = [entry.key.rsplit("/", 1)[1] for entry in store.list("jobs/j/telemetry/")]
    assert len([name for name in names if name.endswith("-packed.jsonl")]) == 8
    assert len(names) <= 8 + 20
    lines = [json.loads(line) for name in names for line in store.get(f"jobs/j/telemetry/{name}").splitlines()]
    assert [line["n"] for line in lines if line["rank"] == 0] == list(range(1, 101))
    assert [line["n"] for line in lines if line["rank"] == 1][-5:] == list(range(96, 101))


def test_after_a_million_objects_of_one_master_they_are_still_in_their_order(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)

    async def go_on() -> None:
        telemetry = Telemetry(store, "j", 1, 999_998)
        for number in (1, 2, 3):
            telemetry.add("a", [{"n": number}], 0.0)
            await telemetry.flush()

    asyncio.run(go_on())
    assert [json.loads(store.get(entry.key))["n"] for entry in store.list("jobs/j/telemetry/")] == [1, 2, 3]
    assert newest_number(store, "j", 1) == 1_000_001


def test_a_job_of_many_rounds_is_no_more_than_its_lines() -> None:
    lines: list[Line] = [{"round": number, "iteration": number, "time": float(number)} for number in range(500)]
    assert thin_lines(lines) == lines
    assert history([job.MasterClaimed(time=0.0, epoch=1, address="a:1")], thin_lines(lines)).points
