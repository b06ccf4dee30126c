"""Into the live state, in place, bit for bit; or not at all, with the reasons."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from everstep.runtime.checkpoint.errors import RestoreError, StateError
from everstep.runtime.checkpoint.shard.copy_to_slot import Stager
from everstep.runtime.checkpoint.shard.digests import seal
from everstep.runtime.checkpoint.shard.layout import json_bytes, plan_layout, state_capacity
from everstep.runtime.checkpoint.shard.restore import restore
from everstep.runtime.checkpoint.state.flatten import flatten, prepare_state
from everstep.runtime.checkpoint.state.stateful import prepare_optimizer

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.3, betas=(0.9, 0.95)),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "AdamW at once": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True, weight_decay=0.1),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD without momentum": lambda p: torch.optim.SGD(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
}


def stage_state(state: dict[str, Any], iteration: int = 5) -> memoryview:
    prepare_state(state)
    tree = flatten(state)
    text = json_bytes({"iteration": iteration, "state": tree.json})
    layout = plan_layout(tree.tensors, state_capacity(text))
    data = memoryview(bytearray(layout.size))
    Stager(layout, tree).stage(0, data, tree, text, iteration)
    return data


def test_a_restored_state_is_the_saved_one_bit_for_bit_and_in_place(make_state: Any, same: Any) -> None:
    saved_state, live = make_state(3), make_state(0)
    data = stage_state(saved_state)
    weights = [p.data_ptr() for p in live["model"].parameters()]
    assert restore(data, live, seal(data)) == 5
    assert same(live, saved_state)
    assert [p.data_ptr() for p in live["model"].parameters()] == weights


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_goes_on_from_a_restored_state_as_if_it_had_never_stopped(kind: str, same: Any) -> None:
    def make_state(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = torch.nn.Linear(7, 3)
        return {"model": model, "optimizer": OPTIMIZERS[kind](model.parameters())}

    def train(state: dict[str, Any], iterations: range) -> None:
        for iteration in iterations:
            torch.manual_seed(iteration)
            state["model"](torch.randn(4, 7)).square().sum().backward()
            state["optimizer"].step()
            state["optimizer"].zero_grad()

    whole, first, second = make_state(1), make_state(1), make_state(2)
    train(whole, range(6))
    train(first, range(3))
    restore(stage_state(first), second)
    train(second, range(3, 6))
    assert same(second, whole)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_preparing_an_optimizer_changes_no_bit_of_weights_gradients_or_course(kind: str, same: Any) -> None:
    weights = torch.tensor([0.0, -0.0, 1.5, float("nan"), float("inf"), -1e-40])
    one, other = torch.nn.Parameter(weights.clone()), torch.nn.Parameter(weights.clone())
    prepared, plain = OPTIMIZERS[kind]([one]), OPTIMIZERS[kind]([other])
    one.grad, other.grad = torch.ones(6), torch.ones(6)
    prepare_optimizer(prepared, "optimizer")
    assert same(one, other)
    assert torch.equal(one.grad, torch.ones(6))
    for _ in range(2):
        prepared.step()
        plain.step()
    assert same(one, other)
    assert same(prepared, plain)


def test_an_optimizer_that_does_not_start_from_zeros_is_named() -> None:
    optimizer = torch.optim.NAdam([torch.nn.Parameter(torch.zeros(3))])
    with pytest.raises(StateError, match="optimizer: NAdam"):
        prepare_state({"optimizer": optimizer})


def test_a_learning_rate_schedule_comes_back(make_state: Any, same: Any) -> None:
    saved_state, live = make_state(1), make_state(0)
    for state in (saved_state, live):
        state["schedule"] = torch.optim.lr_scheduler.StepLR(state["optimizer"], step_size=2)
    for _ in range(5):
        saved_state["optimizer"].step()
        saved_state["schedule"].step()
    restore(stage_state(saved_state), live)
    assert live["schedule"].last_epoch == 5
    assert live["optimizer"].param_groups[0]["lr"] == saved_state["optimizer"].param_groups[0]["lr"]
    assert same(live["optimizer"], saved_state["optimizer"])


def test_values_inside_lists_tuples_and_dicts_come_back_in_place(same: Any) -> None:
    saved_state = {"seen": {"epochs": 3, 7: (1, 2.5)}, "all": [torch.ones(3), torch.nn.Linear(2, 2)], "name": "a"}
    live = {"seen": {"epochs": 0, 7: (0, 0.0)}, "all": [torch.zeros(3), torch.nn.Linear(2, 2)], "name": "b"}
    inner, tensor = live["seen"], live["all"][0]
    restore(stage_state(saved_state), live)
    assert same(live, saved_state)
    assert live["seen"] is inner
    assert live["all"][0] is tensor


class Position:
    """As a generator of random numbers does: its state_dict is a new tensor each time."""

    def __init__(self, *values: int) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return {"values": torch.tensor(self.values)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.values = tuple(state_dict["values"].tolist())


def test_an_object_whose_state_is_made_of_new_tensors_gets_the_saved_values() -> None:
    live = {"here": Position(0, 0), "deeper": [{"there": Position(0)}]}
    restore(stage_state({"here": Position(3, 4), "deeper": [{"there": Position(5)}]}), live)
    assert live["here"].values == (3, 4)
    assert live["deeper"][0]["there"].values == (5,)


def test_names_do_not_depend_on_how_the_model_was_trained(free_group: None, same: Any) -> None:
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    data = stage_state({"model": DistributedDataParallel(model)})
    restore(data, {"model": other})
    assert same(model, other)
    restore(stage_state({"model": torch.nn.Linear(3, 2)}), {"model": DistributedDataParallel(model)})


@pytest.fixture
def free_group(tmp_path: Any) -> Any:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_a_checkpoint_of_another_model_lists_at_most_ten_keys_of_a_kind_and_loads_nothing(same: Any) -> None:
    saved_state = {"w": {f"a{n}": torch.ones(1) for n in range(12)} | {"x": torch.ones(2)}, "gone": 1}
    live = {"w": {f"b{n}": torch.zeros(1) for n in range(11)} | {"x": torch.zeros(3)}, "new": 2}
    before = {"w": {name: tensor.clone() for name, tensor in live["w"].items()}, "new": 2}
    with pytest.raises(RestoreError) as raised:
        restore(stage_state(saved_state), live)
    text = str(raised.value)
    assert "missing: w.b0" in text
    assert text.count("w.b") == 10
    assert "and 2 more" in text
    assert "unexpected: w.a0" in text
    assert "x ([2] float32 saved, [3] float32 wanted)" in text
    assert same(live, before)


def test_large_tensors_come_back_whole_also_where_they_do_not_lie_in_a_row() -> None:
    wide = torch.arange(9 << 20, dtype=torch.int16).view(3 << 10, 3 << 10)
    saved_state = {"row": wide, "turned": wide.t().contiguous(), "none": torch.empty(0), "one": torch.tensor(7)}
    data = stage_state(saved_state)
    turned = torch.zeros_like(wide).t()
    live = {"row": torch.zeros_like(wide), "turned": turned, "none": torch.empty(0), "one": torch.tensor(0)}
    digest = seal(data)
    assert restore(data, live, digest) == 5
    assert all(torch.equal(live[name], tensor) for name, tensor in saved_state.items())
    data[len(data) // 3] ^= 1
    with pytest.raises(RestoreError, match="the digest of bytes"):
        restore(data, live, digest)


def test_a_flipped_bit_is_found(make_state: Any) -> None:
    data = stage_state(make_state(2))
    digest = seal(data)
    data[len(data) // 2] ^= 1
    with pytest.raises(RestoreError, match="damaged"):
        restore(data, make_state(0), digest)
