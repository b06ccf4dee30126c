"""What the copy to the store remembers of states that it has put."""

import pytest

from everstep.runtime.checkpoint.node.core.persist import KEPT_OUTCOMES, Persists
from everstep.runtime.checkpoint.node.core.persist_interval import Cadence
from everstep.runtime.checkpoint.node.core.segments import Segments
from everstep.runtime.checkpoint.node.core.slots import Identity


@pytest.fixture
def persists() -> Persists:
    """They have nothing to put."""
    return Persists(Segments(3, print), Cadence(), str)


def test_the_commit_of_a_later_state_of_the_round_is_as_good_and_the_only_one_remembered(persists: Persists) -> None:
    for iteration in range(1, 1000):
        persists.committed(Identity(1, iteration), f"manifest-{iteration}")
        assert len(persists._outcomes) == 1
    outcome = persists.outcome(Identity(1, 7))
    assert outcome is not None
    assert outcome.manifest == "manifest-999"


def test_what_is_remembered_stays_small_over_rounds_and_where_commits_of_earlier_states_come_late(
    persists: Persists,
) -> None:
    for round_ in range(1, 20):
        persists.begin(round_)
        for iteration in range(1000, 1, -1):
            persists.committed(Identity(round_, iteration), "manifest")
        assert len(persists._outcomes) <= KEPT_OUTCOMES
    persists.begin(30)
    assert persists.outcome(Identity(19, 2)) is None
