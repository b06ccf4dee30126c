"""What is no snapshot is refused; the properties of those that are stand in test_job_properties."""

import pytest

from everstep.runtime.job.snapshot import SCHEMA, SnapshotError, decode_snapshot, encode_snapshot
from everstep.runtime.job.state import State


def test_the_state_before_the_first_record_comes_back() -> None:
    assert decode_snapshot(encode_snapshot(State())) == State()


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"schema":%d}' % SCHEMA, b'{"schema":"x"}', b"\xff"])
def test_bytes_that_are_no_snapshot_are_refused(data: bytes) -> None:
    with pytest.raises(SnapshotError):
        decode_snapshot(data)


def test_a_snapshot_of_another_schema_is_refused_by_its_number() -> None:
    other = encode_snapshot(State()).replace(b'"schema":%d' % SCHEMA, b'"schema":99', 1)
    with pytest.raises(SnapshotError, match="schema 99"):
        decode_snapshot(other)


def test_equal_states_have_the_same_bytes_however_their_sets_were_made() -> None:
    one, other = State(excused=frozenset([0, 8])), State(excused=frozenset([8, 0]))
    assert list(one.excused) != list(other.excused), "the order in which a set is iterated follows its history"
    assert one == other
    assert encode_snapshot(one) == encode_snapshot(other)
