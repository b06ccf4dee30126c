"""The second walk through a state finds what the first one finds, and sees each change."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from everstep.runtime.checkpoint.shard.layout import json_bytes
from everstep.runtime.checkpoint.state import traversal
from everstep.runtime.checkpoint.state.flatten import FlatState, Flattener, flatten
from everstep.runtime.checkpoint.state.parts import local_part


@pytest.fixture(params=[1024, 5], autouse=True)
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that are looked at in one call: all of them, or some."""
    monkeypatch.setattr(traversal, "_BATCH", request.param)


def state() -> dict[str, Any]:
    """A dict of many tensors of which two are one, an optimizer's dict of dicts, and what is no tensor."""
    weights = {f"w{n}": torch.full((2, 2), float(n)) for n in range(traversal.MIN_GROUP)}
    moments = {n: {"step": torch.tensor(1.0), "mean": torch.ones(3)} for n in range(traversal.MIN_GROUP)}
    return {
        "model": {**weights, "tied": weights["w0"], "none": torch.empty(0)},
        "optimizer": {"state": moments, "groups": [{"lr": 0.1, "params": [0, 1]}]},
        "embedding": weights["w1"],
        "few": {"a": torch.ones(1), "b": 2},
    }


def same(first: FlatState, second: FlatState) -> bool:
    values = (list(first.tensors), first.name_by_path, json_bytes(first.json))
    return values == (list(second.tensors), second.name_by_path, json_bytes(second.json)) and all(
        first.tensors[name].data_ptr() == second.tensors[name].data_ptr()
        and torch.equal(first.tensors[name], second.tensors[name])
        for name in first.tensors
    )


def test_a_state_is_found_again_with_the_numbers_of_today() -> None:
    state_value, walker = state(), Flattener()
    before = walker.flatten(state_value)
    assert same(before, flatten(state_value))
    state_value["few"]["b"], state_value["optimizer"]["groups"][0]["lr"] = 3, 0.01
    state_value["model"]["w3"].fill_(9)
    flat = walker.flatten(state_value)
    assert flat.traversal is before.traversal
    assert same(flat, flatten(state_value))
    assert flat.json["few"]["b"] == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["model"].update(w2=torch.ones(2, 2)),
        lambda s: s["model"].update(w2=s["model"]["w2"].t()),
        lambda s: s["model"].update(w2=s["model"]["w2"].view(4)),
        lambda s: s["model"].update(w2=s["model"]["w2"].view(torch.int32)),
        lambda s: s["model"].update(w2=s["model"]["w3"]),
        lambda s: s["model"].update(more=torch.ones(1)),
        lambda s: s["model"].pop("w5"),
        lambda s: s["model"].update(w5=5),
        lambda s: s["optimizer"]["state"][0].update(mean=torch.ones(3)),
        lambda s: s["optimizer"]["state"].pop(0),
        lambda s: s["optimizer"]["state"].update({0: s["optimizer"]["state"].pop(0)}),
        lambda s: s["few"].update(a=torch.zeros(1)),
        lambda s: s["few"].pop("a"),
        lambda s: s.pop("model"),
        lambda s: s.update(embedding=s["model"]["w4"]),
        lambda s: s.update(model=list(s["model"].values())),
    ],
)
def test_whatever_changes_is_seen(change: Callable[[dict[str, Any]], Any]) -> None:
    state_value, walker = state(), Flattener()
    before = walker.flatten(state_value)
    change(state_value)
    flat = walker.flatten(state_value)
    assert flat.traversal is not before.traversal
    assert same(flat, flatten(state_value))
    assert same(walker.flatten(state_value), flatten(state_value))


def test_a_walk_keeps_no_tensor_alive() -> None:
    state_value, walker = state(), Flattener()
    walker.flatten(state_value)
    freed: list[str] = []
    for tensor in (state_value["model"]["w7"], state_value["optimizer"]["state"][0]["mean"], state_value["few"]["a"]):
        weakref.finalize(tensor, freed.append, "freed")
    del tensor
    state_value.clear()
    assert freed == ["freed"] * 3


def test_a_large_state_is_looked_at_by_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    state_value, walker = state(), Flattener()
    walker.flatten(state_value)
    looked: list[str] = []
    monkeypatch.setattr(
        traversal, "fingerprint", lambda tensor, mark=traversal.fingerprint: looked.append("one") or mark(tensor)
    )
    walker.flatten(state_value)
    assert len(looked) == 3, "the embedding, the tied one and the one of the few"


def test_a_tensor_and_its_conjugate_share_their_memory_and_are_two() -> None:
    number = torch.tensor([1 + 2j])
    assert list(flatten({"a": number, "b": number.conj()}).tensors) == ["a", "b"]


def test_a_module_and_its_optimizer_are_found_again() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(traversal.MIN_GROUP)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state_value, walker = {"model": model, "optimizer": optimizer}, Flattener()
    before = walker.flatten(state_value)
    optimizer.step()
    assert walker.flatten(state_value).traversal is before.traversal
    assert same(walker.flatten(state_value), flatten(state_value))


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("change", [None, "memory", "whole"])
def test_sharded_tensors_are_found_again_and_are_whole_in_the_live_state(
    mesh: DeviceMesh, change: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sharded_tensors(number: int) -> torch.Tensor:
        return distribute_tensor(torch.full((4, 2), float(number)), mesh, [Shard(0)])

    weights = {f"w{n}": sharded_tensors(n) for n in range(traversal.MIN_GROUP)}
    moments = {n: {"step": torch.tensor(1.0), "mean": sharded_tensors(n)} for n in range(traversal.MIN_GROUP)}
    state_value, walker = {"model": {**weights, "tied": weights["w0"]}, "optimizer": moments}, Flattener()
    before = walker.flatten(state_value)
    if change:
        state_value["model"]["w2"] = sharded_tensors(2) if change == "memory" else local_part(weights["w2"])
    looked: list[str] = []
    monkeypatch.setattr(
        traversal, "fingerprint", lambda tensor, mark=traversal.fingerprint: looked.append("one") or mark(tensor)
    )
    flat = walker.flatten(state_value)
    assert (flat.traversal is before.traversal) == (change is None)
    assert looked == ["one"] or change, "the tied one alone"
    assert same(flat, flatten(state_value))
    assert flat.parts() == flatten(state_value).parts()
    assert len(flat.parts()) == 2 * traversal.MIN_GROUP - (change == "whole")
    for path, tensor in (("model.w1", state_value["model"]["w1"]), ("model.w2", state_value["model"]["w2"])):
        assert isinstance(flat.live_tensor(path), DTensor) is isinstance(tensor, DTensor)
        assert flat.live_tensor(path).data_ptr() == tensor.data_ptr()
    assert flat.is_sharded() is False, "one rank holds it all"


def test_nothing_is_collected_while_a_state_is_saved_and_collection_is_as_it_was_then() -> None:
    for was in (True, False):
        (gc.enable if was else gc.disable)()
        try:
            with traversal.pause_gc():
                assert not gc.isenabled()
            assert gc.isenabled() is was
        finally:
            gc.enable()
