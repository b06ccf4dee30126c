"""Every byte of a shard is checked, wherever blocks, tensors and tasks of copying end."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.checkpoint.errors import RestoreError
from everstep.runtime.checkpoint.shard import digests, restore
from everstep.runtime.checkpoint.shard.digests import ArrivalCheck, Digests, seal
from tests.checkpoint.test_restoring import stage_state


@contextmanager
def small(block: int, task: int) -> Iterator[None]:
    """So that a few kilobytes have many of each: blocks, tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "BLOCK_BYTES", block)
        patch.setattr(restore, "BLOCK_BYTES", block)
        patch.setattr(restore, "_TASK_BYTES", task)
        yield


SIZES = st.lists(st.integers(0, 3000), min_size=1, max_size=12)
CUTS = st.tuples(st.integers(64, 5000), st.integers(16, 3000))


@given(SIZES, CUTS, st.floats(0, 1, exclude_max=True))
def test_what_was_saved_comes_back_and_each_changed_byte_is_found(
    sizes: list[int], cuts: tuple[int, int], where: float
) -> None:
    saved_state = {f"t{n}": torch.randint(0, 256, (size,), dtype=torch.uint8) for n, size in enumerate(sizes)}
    with small(*cuts):
        data = stage_state(saved_state)
        digest = seal(data)
        live = {name: torch.zeros_like(tensor) for name, tensor in saved_state.items()}
        assert restore.restore(data, live, digest) == 5
        assert all(torch.equal(live[name], tensor) for name, tensor in saved_state.items())
        first = len(Digests(data).head)
        if first == len(data):
            return
        at = first + int(where * (len(data) - first))
        data[at] ^= 0x10
        untouched = {name: torch.full_like(tensor, 7) for name, tensor in saved_state.items()}
        with pytest.raises(RestoreError, match=r"the digest of bytes (\d+) to (\d+)") as raised:
            restore.restore(data, untouched, digest)
        assert all(bool((tensor == 7).all()) for tensor in untouched.values())
    begin, end = (int(word) for word in str(raised.value).split() if word.isdigit())
    assert begin <= at < end


@given(st.binary(min_size=1, max_size=3000), st.lists(st.integers(0, 700), max_size=40))
def test_bytes_may_come_in_any_pieces(content: bytes, pieces: list[int]) -> None:
    with small(512, 256):
        data = stage_state({"t": torch.frombuffer(bytearray(content), dtype=torch.uint8)})
        seal(data)
        digests = Digests(data)
        for damaged in (False, True):
            running, at = digests.start_check(len(digests.head)), len(digests.head)
            if damaged:
                data[len(digests.head)] ^= 1
            try:
                for size in pieces:
                    running.update(data[at : at + size])
                    at += len(data[at : at + size])
                assert running.at == at
                running.update(data[at:])
                running.finish()
                assert not damaged
            except RestoreError:
                assert damaged


@given(SIZES, st.integers(64, 5000), st.lists(st.integers(1, 9000), min_size=1), st.floats(0, 1, exclude_max=True))
def test_what_comes_in_parts_is_checked_as_it_comes(
    sizes: list[int], block: int, parts: list[int], where: float
) -> None:
    saved_state = {f"t{n}": torch.randint(0, 256, (size,), dtype=torch.uint8) for n, size in enumerate(sizes)}
    with small(block, 512):
        data = stage_state(saved_state)
        digest = seal(data)
        assert damaged_at(data, digest, parts) is None
        head, at = len(Digests(data).head), int(where * len(data))
        data[at] ^= 0x10
        at_damage = damaged_at(data, digest, parts)
        assert at_damage is not None
        assert at < at_damage
        assert at < head or at_damage <= at + block + max(parts)


def damaged_at(data: memoryview, digest: str, parts: list[int]) -> int | None:
    """How much had come when it was found."""
    arriving, end = ArrivalCheck(data, digest), 0
    for size in cycle(parts):
        end = min(end + size, len(data))
        try:
            arriving.advance(end)
        except RestoreError:
            return end
        if end == len(data):
            return None
    raise AssertionError(parts)
