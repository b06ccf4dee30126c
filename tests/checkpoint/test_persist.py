"""What the copy to the store remembers of states that it has put."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from everstep.runtime.checkpoint.node.persist import KEPT_OUTCOMES, Persister
from everstep.runtime.checkpoint.node.slots import Identity


@pytest.fixture
def persister() -> Iterator[Persister]:
    """One that has nothing to put; the test holds its lock all the time."""
    changed = threading.Condition()
    nothing = cast(Any, SimpleNamespace())
    with changed:
        made = Persister(changed, nothing, nothing, "job", lambda _: None, lambda *_: "", nothing)
        yield made
        made.close()
        changed.notify_all()


def test_the_commit_of_a_later_state_of_the_round_is_as_good_and_the_only_one_remembered(persister: Persister) -> None:
    for iteration in range(1, 1000):
        persister.committed(Identity(1, iteration), f"manifest-{iteration}")
        assert len(persister._outcomes) == 1
    outcome = persister.outcome(Identity(1, 7))
    assert outcome is not None
    assert outcome.manifest == "manifest-999"


def test_what_is_remembered_stays_small_over_rounds_and_where_commits_of_earlier_states_come_late(
    persister: Persister,
) -> None:
    for round_ in range(1, 20):
        persister.begin(round_)
        for iteration in range(1000, 1, -1):
            persister.committed(Identity(round_, iteration), "manifest")
        assert len(persister._outcomes) <= KEPT_OUTCOMES
    persister.begin(30)
    assert persister.outcome(Identity(19, 2)) is None
