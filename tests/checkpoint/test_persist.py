"""What the queue to the store remembers of states that it has put."""

import pytest

from everstep.runtime.checkpoint.node.core.events import CheckpointCommitted
from everstep.runtime.checkpoint.node.core.options import KeeperOptions
from everstep.runtime.checkpoint.node.core.persist import MAX_RESULTS, PersistQueue
from everstep.runtime.checkpoint.node.core.segments import Segments
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.checkpoint.node.core.transaction import Transaction
from tests.fake_agent import seat


@pytest.fixture
def queue() -> PersistQueue:
    """It has nothing to put."""
    tx = Transaction()
    return PersistQueue(tx, Segments(tx), KeeperOptions("job", "node", 1), lambda identity, _: str(identity))


def test_the_commit_of_a_later_state_of_the_round_is_as_good_and_the_only_one_remembered(queue: PersistQueue) -> None:
    for iteration in range(1, 1000):
        queue.note_commit(CheckpointCommitted(Identity(1, iteration), f"manifest-{iteration}"))
        assert len(queue._results) == 1
    result = queue.result(Identity(1, 7))
    assert result is not None
    assert result.manifest == "manifest-999"


def test_what_is_remembered_stays_small_over_rounds_and_where_commits_of_earlier_states_come_late(
    queue: PersistQueue,
) -> None:
    for round_ in range(1, 20):
        queue.begin(seat(round_))
        for iteration in range(1000, 1, -1):
            queue.note_commit(CheckpointCommitted(Identity(round_, iteration), "manifest"))
        assert len(queue._results) <= MAX_RESULTS
    queue.begin(seat(30))
    assert queue.result(Identity(19, 2)) is None
