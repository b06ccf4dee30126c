"""Which checkpoints stay in the store, and that whoever finds a manifest finds what it names."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.checkpoint.state.flatten import flatten
from everstep.runtime.checkpoint.stored.keys import shard_key
from everstep.runtime.checkpoint.stored.retention import (
    DEBRIS_S,
    CheckpointId,
    RetentionPolicy,
    StoredObjects,
    delete_checkpoints,
    keys_to_delete,
    surplus,
)
from everstep.runtime.checkpoint.stored.verify import find_problems, list_checkpoints
from everstep.runtime.checkpoint.worker.standalone import StandaloneKeeper
from everstep.runtime.store import DirectoryStore

JOB = "jobs/j/checkpoints/"


def whole(*places: CheckpointId) -> dict[CheckpointId, StoredObjects]:
    return {place: StoredObjects(committed=True) for place in places}


def test_the_newest_stay_and_every_so_many_iterations_the_newest_one() -> None:
    checkpoints = whole((1, 10), (1, 20), (1, 30), (2, 20), (2, 30), (2, 35), (2, 40))
    assert surplus(checkpoints, RetentionPolicy(2, 20), 0.0) == [(1, 10), (1, 20), (1, 30), (2, 30)]
    assert surplus(checkpoints, RetentionPolicy(2), 0.0) == [(1, 10), (1, 20), (1, 30), (2, 20), (2, 30)]
    assert surplus(checkpoints, RetentionPolicy(), 0.0) == []


def test_what_the_running_round_began_from_stays() -> None:
    assert surplus(whole((1, 10), (1, 20), (2, 30)), RetentionPolicy(1, started_from=(1, 20)), 0.0) == [(1, 10)]


def test_what_was_never_committed_goes_when_it_is_old_and_a_newer_one_is_committed() -> None:
    checkpoints = whole((2, 5)) | {
        (1, 4): StoredObjects(modified=100.0),
        (2, 4): StoredObjects(modified=500.0),
        (2, 6): StoredObjects(modified=1.0),
    }
    assert surplus(checkpoints, RetentionPolicy(), 200.0 + DEBRIS_S) == [(1, 4)]
    assert surplus({(1, 4): StoredObjects()}, RetentionPolicy(1), 10**9) == []


places = st.tuples(st.integers(1, 3), st.integers(1, 30))


@given(st.dictionaries(places, st.booleans(), min_size=1), st.integers(0, 4), st.integers(0, 10), places)
def test_the_newest_committed_one_and_what_is_newer_always_stay(
    committed: dict[CheckpointId, bool], last: int, every: int, begun: CheckpointId
) -> None:
    checkpoints = {place: StoredObjects(committed=is_whole) for place, is_whole in committed.items()}
    surplus_places = surplus(checkpoints, RetentionPolicy(last, every, begun), 10**9)
    newest = max((place for place, is_whole in committed.items() if is_whole), default=(0, 0))
    assert all(place < newest for place in surplus_places)
    assert begun not in surplus_places or not committed[begun]
    places_left = [place for place, is_whole in committed.items() if is_whole and place not in surplus_places]
    assert len(places_left) >= min(last or len(places_left), sum(committed.values()))


class Failing(DirectoryStore):
    """Ends after so many deletions, as a killed master does."""

    left = 3

    def delete(self, key: str) -> None:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        super().delete(key)


def test_a_deletion_that_is_broken_off_leaves_no_manifest_without_its_objects(tmp_path: Path) -> None:
    store = Failing(tmp_path)
    alone = StandaloneKeeper(store, "j")
    for iteration in range(1, 5):
        alone.save(iteration, flatten({"weight": torch.zeros(9)}), persist=True)
        alone.flush(iteration)
    with pytest.raises(KeyboardInterrupt):
        delete_checkpoints(store, keys_to_delete(store, "j", RetentionPolicy(1)))
    checkpoints = list_checkpoints(store, JOB)
    assert [(checkpoint.iteration, checkpoint.commit is not None) for checkpoint in checkpoints] == [
        (2, False),
        (3, True),
        (4, True),
    ]
    for checkpoint in checkpoints[1:]:
        assert checkpoint.commit is not None
        assert list(find_problems(store, checkpoint.folder, checkpoint.commit)) == []
    store.left = 99
    delete_checkpoints(store, keys_to_delete(store, "j", RetentionPolicy(1)))
    assert [checkpoint.iteration for checkpoint in list_checkpoints(store, JOB)] == [2, 4]
    later = next(entry for entry in store.list(JOB) if entry.key == shard_key("j", 1, 2, 0)).modified + DEBRIS_S + 1
    delete_checkpoints(store, keys_to_delete(store, "j", RetentionPolicy(1), now=later))
    assert [checkpoint.iteration for checkpoint in list_checkpoints(store, JOB)] == [4]
