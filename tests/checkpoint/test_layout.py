"""A shard is byte for byte a safetensors file, and what cannot be in one is named by its key path."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.two_tensor import TwoTensor

from everstep.runtime.checkpoint.errors import RestoreError, StateError
from everstep.runtime.checkpoint.shard.copy_to_slot import Stager
from everstep.runtime.checkpoint.shard.layout import SMALL_BYTES, json_bytes, plan_layout, read_shard, state_capacity
from everstep.runtime.checkpoint.shard.sizes import PAGE
from everstep.runtime.checkpoint.state.flatten import flatten
from tests.examples import examples


def stage_state(state: Any, iteration: int = 5) -> bytearray:
    tree = flatten(state)
    text = json_bytes({"iteration": iteration, "state": tree.json})
    layout = plan_layout(tree.tensors, state_capacity(text))
    data = bytearray(b"\xff" * layout.size)
    Stager(layout, tree).stage(0, memoryview(data), tree, text, iteration)
    return data


def test_safetensors_reads_what_is_staged(tmp_path: Path, make_state: Callable[[int], dict[str, Any]]) -> None:
    state = make_state(3)
    (tmp_path / "shard.safetensors").write_bytes(stage_state(state))
    read = safetensors.torch.load_file(tmp_path / "shard.safetensors")
    for name, weight in state["model"].state_dict().items():
        assert torch.equal(read[f"model.{name}"], weight)
    assert torch.equal(read["optimizer.state.0.exp_avg"], state["optimizer"].state_dict()["state"][0]["exp_avg"])
    others = {name for name in read if not name.startswith(("model.", "optimizer.state.", "__everstep_pad_"))}
    assert others == {"__everstep_state__", "__everstep_digests__"}


def test_data_and_every_large_tensor_begin_on_a_page() -> None:
    layout = plan_layout(
        {f"t{n}": torch.zeros(SMALL_BYTES // 4 + n) for n in range(5)} | {"small": torch.zeros(3)}, PAGE
    )
    assert len(layout.header) % PAGE == 0
    assert {place.start % PAGE for place in layout.tensors.values() if place.size >= SMALL_BYTES} == {0}


SHAPES = st.lists(st.integers(0, 40), max_size=3)
TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])


@settings(max_examples=examples(60))
@given(st.dictionaries(st.text('abc.é"\\', min_size=1, max_size=4), st.tuples(TYPES, SHAPES), max_size=8))
def test_any_tensors_come_back_bit_for_bit_and_aligned(tmp: dict[str, tuple[torch.dtype, list[int]]]) -> None:
    tensors = {name: torch.randint(0, 2, shape).to(dtype) for name, (dtype, shape) in tmp.items()}
    data = stage_state(tensors)
    read = safetensors.torch.load(bytes(data))
    state, own = read_shard(data)
    for name, tensor in tensors.items():
        assert torch.equal(read[name], tensor)
        assert torch.equal(state[name], tensor)
        assert own[name].dtype is tensor.dtype
        assert own[name].shape == tensor.shape
        assert not tensor.numel() or own[name].data_ptr() % tensor.dtype.itemsize == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.just("$"), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=examples(100))
@given(JSON)
def test_what_is_no_tensor_comes_back_as_it_was(value: Any) -> None:
    back = read_shard(stage_state({"value": value}))[0]["value"]
    assert back == value
    assert repr(back) == repr(value)


def test_a_nan_is_kept_though_json_has_none() -> None:
    assert math.isnan(read_shard(stage_state({"loss": [math.nan]}))[0]["loss"][0])


def test_a_tensor_at_two_places_is_stored_once_and_read_at_both() -> None:
    weight = torch.randn(300, 100)
    state, tensors = read_shard(stage_state({"embedding": weight, "head": {"weight": weight}}))
    assert list(tensors) == ["embedding"]
    assert torch.equal(state["head"]["weight"], weight)


def freed_tensor() -> torch.Tensor:
    """One whose memory was given back, as FSDP does with gathered parameters."""
    tensor = torch.zeros(3)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"a": {"b": [1, object()]}}, r"a\.b\.1: a object"),
        ({"rng": np.zeros(3)}, "rng: a ndarray"),
        ({"a": {1.5: 1}}, "a: a dict with keys"),
        ({"a": {"b": torch.zeros(3).to_sparse()}}, r"a\.b: only dense"),
        ({"a": {"b": torch.zeros(1)}, "a.b": torch.zeros(1)}, r"a\.b: two tensors"),
        ({"a": torch.zeros(3, dtype=torch.complex128)}, "a: safetensors has no name"),
        ({"a": [TwoTensor(torch.full((3,), n), torch.ones(3)) for n in (1.0, 2.0)]}, r"a\.0: a TwoTensor"),
        ({"a": freed_tensor()}, "a: a Tensor without memory of its own"),
    ],
)
def test_what_cannot_be_checkpointed_is_named_by_its_key_path(state: Any, path: str) -> None:
    with pytest.raises(StateError, match=path):
        stage_state(state)


def test_a_state_that_outgrows_its_place_says_so() -> None:
    layout = plan_layout({}, PAGE)
    with pytest.raises(StateError, match="4096 were set aside"):
        layout.write_state(memoryview(bytearray(layout.size)), b"x" * (PAGE + 1))


@pytest.mark.parametrize("cut", [4, 5000, -1])
def test_a_torn_shard_is_refused(cut: int) -> None:
    with pytest.raises(RestoreError):
        read_shard(stage_state({"a": torch.zeros(5)})[:cut])


def test_a_file_of_somebody_else_is_refused() -> None:
    with pytest.raises(RestoreError, match="not a shard of Everstep"):
        read_shard(bytearray(safetensors.torch.save({"a": torch.zeros(3)})))


def test_a_shard_is_written_and_read_in_memory_of_the_host_whatever_the_default_device_is() -> None:
    state = {"some": torch.arange(5.0), "none": torch.zeros(0, 3)}
    with torch.device("meta"):
        read, _ = read_shard(stage_state(state))
    assert read["some"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert read["none"].is_cpu
