"""Each second of the train step is in the ledger once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.report.history import History, Point, Restart, RoundSpan
from everstep.runtime.report.ledger import Part, ledger


def restart(time: float, seconds: float | None) -> Restart:
    return Restart(time, 1, "worker-0-0", "rank 0", "killed", "", seconds, 0)


def test_the_parts_are_what_they_say() -> None:
    told = History(
        rounds=(RoundSpan(1, 3.0, None, ("worker-0-0",), "", None),),
        restarts=(restart(20.0, 5.0),),
        points=(
            Point(12.0, 1, 1, seconds=2.0, stall_s=0.5),
            Point(19.0, 1, 2, seconds=6.0),
            Point(25.0, 2, 3, seconds=1.0),
        ),
        begin=1.0,
    )
    found = ledger(told, 0.0, 30.0)
    assert found is not None
    assert {entry.part: entry.seconds for entry in found.entries} == pytest.approx(
        {Part.WAITING: 3.0, Part.STARTUP: 7.0, Part.TRAINING: 7.5, Part.STALL: 0.5, Part.RESTART: 5.0, Part.REST: 7.0}
    )
    assert found.goodput == pytest.approx(0.25)


def test_a_restart_that_is_not_over_lasts_to_the_end() -> None:
    found = ledger(History(restarts=(restart(4.0, None),), begin=0.0), 0.0, 10.0)
    assert found is not None
    assert found.restart_s == pytest.approx(6.0)


def test_no_seconds_make_no_ledger() -> None:
    assert ledger(History(), 5.0, 5.0) is None


times = st.floats(-10, 200, allow_nan=False)
lengths = st.floats(0, 100, allow_nan=False)


@given(
    st.lists(st.builds(restart, times, st.none() | lengths), max_size=4),
    st.lists(
        st.builds(Point, times, st.just(1), st.integers(0, 50), st.none(), st.none(), lengths, lengths), max_size=12
    ),
    st.lists(times, max_size=3),
    st.none() | times,
    st.floats(0.001, 150),
)
def test_every_ledger_adds_up_to_the_whole(
    restarts: list[Restart], points: list[Point], rounds: list[float], begin: float | None, end: float
) -> None:
    spans = tuple(RoundSpan(number, time, None, (), "", None) for number, time in enumerate(sorted(rounds), 1))
    found = ledger(History(spans, tuple(restarts), tuple(points), begin=begin), 0.0, end)
    assert found is not None
    assert all(entry.seconds >= 0 for entry in found.entries)
    assert sum(entry.seconds for entry in found.entries) == pytest.approx(end)
    assert sum(entry.share for entry in found.entries) == pytest.approx(1.0)
