"""Random sequences of whole jobs on a network that was bad until some moment: every job reaches an end."""

import pytest

from tests.examples import examples
from tests.job.liveness import KINDS, draw, explore
from tests.job.simulated import Simulation

SEQUENCES, FEW = 10_000, 1_000
"""A minute of one core in the profile `ci`, and those of `dev`, in which each kind of fault happens in each part, too;
`make liveness` runs as many as are asked for."""
PARTS = 4
NETWORK = ("delayed", "dropped", "repeated", "reopened")


@pytest.mark.parametrize("part", range(PARTS))
def test_with_a_fair_network_from_some_moment_on_every_job_reaches_an_end(part: int) -> None:
    each = examples(SEQUENCES, dev=FEW) // PARTS
    count, fired, broken = explore(7, range(part * each, (part + 1) * each))
    assert count == each
    assert not broken, f"python -m tests.job.liveness --seed 7 --only {broken[0][0]}: {broken[0][1]}"
    assert not [kind for kind in (*KINDS, *NETWORK) if not fired[kind]], "every kind of fault has happened"
    assert fired["ended: succeeded"] > each / 2


def test_the_same_plan_gives_the_same_course() -> None:
    first, again = (Simulation(draw(7, 3)) for _ in range(2))
    assert first.run() == again.run()
    assert first.journal.segments == again.journal.segments


def test_a_node_that_never_takes_its_seat_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator sees what it is made to see: here the master takes late copies of joins for new ones, and neither
    heartbeats that contradict a seat nor a round that never moves are noticed."""
    monkeypatch.setattr("everstep.runtime.job.on_event._contradicts", lambda beat, node: False)
    monkeypatch.setattr("everstep.runtime.job.liveness.stands_still", lambda beat, spec: False)
    monkeypatch.setattr("everstep.runtime.job.liveness.Liveness.all_still", lambda *_: False)
    monkeypatch.setattr("everstep.runtime.job.on_event._is_copy", lambda join, node: False)
    broken = explore(5, range(250, 251))[2]
    assert broken, "sequence 250 of seed 5 strands a node without the rules for late messages"
    assert "neither ends nor trains on" in broken[0][1]
