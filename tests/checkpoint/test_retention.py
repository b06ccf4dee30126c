"""Which checkpoints stay in the store, and that whoever finds a manifest finds what it names."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.checkpoint.state.flatten import flatten
from everstep.runtime.checkpoint.stored.keys import shard_key
from everstep.runtime.checkpoint.stored.retention import DEBRIS_S, Found, Kept, Place, delete, surplus, unneeded
from everstep.runtime.checkpoint.stored.verify import problems, stored
from everstep.runtime.checkpoint.worker.standalone import Alone
from everstep.runtime.store import DirectoryStore

JOB = "jobs/j/checkpoints/"


def whole(*places: Place) -> dict[Place, Found]:
    return {place: Found(committed=True) for place in places}


def test_the_newest_stay_and_every_so_many_iterations_the_newest_one() -> None:
    found = whole((1, 10), (1, 20), (1, 30), (2, 20), (2, 30), (2, 35), (2, 40))
    assert surplus(found, Kept(2, 20), 0.0) == [(1, 10), (1, 20), (1, 30), (2, 30)]
    assert surplus(found, Kept(2), 0.0) == [(1, 10), (1, 20), (1, 30), (2, 20), (2, 30)]
    assert surplus(found, Kept(), 0.0) == []


def test_what_the_running_round_began_from_stays() -> None:
    assert surplus(whole((1, 10), (1, 20), (2, 30)), Kept(1, begun=(1, 20)), 0.0) == [(1, 10)]


def test_what_was_never_committed_goes_when_it_is_old_and_a_newer_one_is_committed() -> None:
    found = whole((2, 5)) | {(1, 4): Found(modified=100.0), (2, 4): Found(modified=500.0), (2, 6): Found(modified=1.0)}
    assert surplus(found, Kept(), 200.0 + DEBRIS_S) == [(1, 4)]
    assert surplus({(1, 4): Found()}, Kept(1), 10**9) == []


places = st.tuples(st.integers(1, 3), st.integers(1, 30))


@given(st.dictionaries(places, st.booleans(), min_size=1), st.integers(0, 4), st.integers(0, 10), places)
def test_the_newest_committed_one_and_what_is_newer_always_stay(
    committed: dict[Place, bool], last: int, every: int, begun: Place
) -> None:
    found = {place: Found(committed=is_whole) for place, is_whole in committed.items()}
    gone = surplus(found, Kept(last, every, begun), 10**9)
    newest = max((place for place, is_whole in committed.items() if is_whole), default=(0, 0))
    assert all(place < newest for place in gone)
    assert begun not in gone or not committed[begun]
    left = [place for place, is_whole in committed.items() if is_whole and place not in gone]
    assert len(left) >= min(last or len(left), sum(committed.values()))


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
    alone = Alone(store, "j")
    for iteration in range(1, 5):
        alone.save(iteration, flatten({"weight": torch.zeros(9)}), persist=True)
        alone.flush(iteration)
    with pytest.raises(KeyboardInterrupt):
        delete(store, unneeded(store, "j", Kept(1)))
    found = stored(store, JOB)
    assert [(one.iteration, one.commit is not None) for one in found] == [(2, False), (3, True), (4, True)]
    for one in found[1:]:
        assert one.commit is not None
        assert list(problems(store, one.folder, one.commit)) == []
    store.left = 99
    delete(store, unneeded(store, "j", Kept(1)))
    assert [one.iteration for one in stored(store, JOB)] == [2, 4]
    later = next(entry for entry in store.list(JOB) if entry.key == shard_key("j", 1, 2, 0)).modified + DEBRIS_S + 1
    delete(store, unneeded(store, "j", Kept(1), now=later))
    assert [one.iteration for one in stored(store, JOB)] == [4]
