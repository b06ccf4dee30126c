"""Tensors that are copied many at a time have the same bytes as those that are copied one by one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.checkpoint.shard.batched_copy import MIN_ROWS, SMALL_ELEMENTS, group_rows
from everstep.runtime.checkpoint.shard.copy_to_slot import Stager
from everstep.runtime.checkpoint.shard.digests import seal
from everstep.runtime.checkpoint.shard.layout import Layout, json_bytes, plan_layout, read_shard, state_capacity
from everstep.runtime.checkpoint.shard.restore import restore
from everstep.runtime.checkpoint.state.flatten import FlatState, Flattener, flatten


def laid_out(tree: FlatState) -> tuple[Layout, bytes]:
    text = json_bytes({"iteration": 5, "state": tree.json})
    return plan_layout(tree.tensors, state_capacity(text)), text


def cut(kind: torch.dtype, size: int, offset: int) -> torch.Tensor:
    """A tensor that begins somewhere within other memory."""
    return torch.randint(0, 200, (size + offset + 3,)).to(kind)[offset : offset + size]


KINDS: dict[str, Callable[[int], torch.Tensor]] = {
    "of 4 bytes each": lambda size: cut(torch.float32, size, 1),
    "of 2": lambda size: cut(torch.bfloat16, size, 3),
    "of 1": lambda size: cut(torch.uint8, size, 5),
    "of 8": lambda size: cut(torch.int64, size, 0),
    "complex": lambda size: torch.randn(size, dtype=torch.complex64).conj(),
    "not in a row": lambda size: cut(torch.float32, 2 * size, 0)[::2],
    "negated by its reader": lambda size: torch.randn(size, dtype=torch.complex64).conj().imag,
    "matrices": lambda size: cut(torch.float64, size * 2, 1).view(2, size),
}
MANY = st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 70), st.integers(1, 2 * MIN_ROWS)), max_size=5)


@given(MANY)
def test_whatever_is_staged_and_restored_is_what_it_was(tensors_of_groups: list[tuple[str, int, int]]) -> None:
    state = {
        f"{n}.{i}": KINDS[kind](size) for n, (kind, size, count) in enumerate(tensors_of_groups) for i in range(count)
    }
    tree = flatten(state)
    layout, text = laid_out(tree)
    data = bytearray(b"\xff" * layout.size)
    Stager(layout, tree).stage(0, memoryview(data), tree, text, 5)
    read = read_shard(data)[1]
    live = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    assert restore(memoryview(data), live, seal(memoryview(data))) == 5
    for name, tensor in state.items():
        assert torch.equal(read[name], tensor.resolve_conj().resolve_neg())
        assert torch.equal(live[name], tensor)


@pytest.mark.parametrize(
    ("elements", "count", "rows"), [(300, 40, 40), (300, MIN_ROWS - 1, 0), (SMALL_ELEMENTS, MIN_ROWS, 0)]
)
def test_many_small_ones_are_one_copy(elements: int, count: int, rows: int) -> None:
    tree = flatten({f"t{n}": torch.full((elements,), float(n)) for n in range(count)})
    layout, _ = laid_out(tree)
    every, others = group_rows(list(layout.tensors.values()), [tree.tensors[name] for name in layout.tensors])
    assert [len(rows_copied.chosen) for rows_copied in every] == [rows] * bool(rows)
    assert len(others) == count - rows


def test_a_tensor_that_moved_is_copied_from_where_it_is(same: Any) -> None:
    state = {f"t{n}": torch.full((50,), float(n)) for n in range(3 * MIN_ROWS)}
    walker = Flattener()
    tree = walker.flatten(state)
    layout, text = laid_out(tree)
    stager, data = Stager(layout, tree), memoryview(bytearray(layout.size))
    stager.stage(0, data, tree, text, 5)
    state["t7"], state["t9"] = state["t9"], torch.full((50,), -1.0)
    stager.stage(0, data, walker.flatten(state), text, 6)
    assert same(read_shard(data)[1], {name: state[name] for name in layout.tensors})


def test_one_saved_tensor_goes_to_each_that_stands_in_its_places() -> None:
    weight = torch.arange(9.0)
    tree = flatten({"a": weight, "b": weight, "c": torch.ones(2)})
    layout, text = laid_out(tree)
    data = memoryview(bytearray(layout.size))
    Stager(layout, tree).stage(0, data, tree, text, 5)
    live = {"a": torch.zeros(9), "b": torch.zeros(9), "c": torch.zeros(2)}
    restore(data, live, seal(data))
    assert torch.equal(live["a"], weight)
    assert torch.equal(live["b"], weight)
    assert torch.equal(live["c"], torch.ones(2))


def test_what_was_one_tensor_and_is_many_now_has_its_bytes_everywhere() -> None:
    shared = torch.arange(50.0)
    tree = flatten({f"t{n}": shared for n in range(2 * MIN_ROWS)})
    layout, text = laid_out(tree)
    data = memoryview(bytearray(layout.size))
    Stager(layout, tree).stage(0, data, tree, text, 5)
    live = {f"t{n}": torch.zeros(50) for n in range(2 * MIN_ROWS)}
    assert restore(data, live, seal(data)) == 5
    assert all(torch.equal(tensor, shared) for tensor in live.values())
