"""Shards of a checkpoint against a plain tuple, also where versions branch; what one more costs."""

import sys
from types import FrameType

from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.job.checkpoints import Checkpoint, Checkpoints, Shards, with_shard
from everstep.runtime.job.snapshot import decode_snapshot, encode_snapshot
from everstep.runtime.job.state import State
from everstep.runtime.protocol.holdings import Holding

MANY = 10_000


def _holding(shard: int, shards: int = MANY) -> Holding:
    return Holding(1, 50, shard=shard, shards=shards, size=1, key=f"k/{shard}", digest="0" * 32)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9)), max_size=30))
def test_every_version_stays_what_it_was_whatever_branches_off(steps: list[tuple[int, int]]) -> None:
    versions: list[tuple[Shards, tuple[Holding, ...]]] = [(Shards(), ())]
    for parent, number in steps:
        shards, expected_shards = versions[parent % len(versions)]
        holding = _holding(number, 4)
        assert (number in shards) == (holding in expected_shards)
        if holding not in expected_shards:
            versions.append((shards.add(holding), (*expected_shards, holding)))
    for shards, expected_shards in versions:
        assert tuple(shards) == expected_shards
        assert len(shards) == len(expected_shards)
        assert shards == Shards(expected_shards)
        assert shards.is_complete == (len(expected_shards) >= 4)
        state = State(checkpoints={(1, 50): Checkpoint(shards)})
        assert decode_snapshot(encode_snapshot(state)) == state


def test_of_two_shards_of_one_number_the_first_counts() -> None:
    once = with_shard({}, _holding(3))
    assert with_shard(once, Holding(1, 50, shard=3, shards=MANY, key="another")) == once


def test_the_ten_thousandth_shard_costs_what_the_tenth_did() -> None:
    checkpoints: Checkpoints = {}
    calls: list[int] = []

    def count(frame: FrameType, event: str, arg: object) -> None:
        calls[-1] += 1

    before = sys.getprofile()
    for shard in range(MANY):
        calls.append(0)
        sys.setprofile(count)
        checkpoints = with_shard(checkpoints, _holding(shard))
        sys.setprofile(before)
    assert calls[10] > 0, "somebody counted"
    assert max(calls[10:]) <= 2 * calls[10]
