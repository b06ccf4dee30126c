"""What a worker keeps from round to round."""

import gc
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from everstep.kept_values import KeptValues
from everstep.runtime.agent.ports import free_port
from everstep.seeding import seed_cpu_generators
from tests.forks import Forks


def build(size: int) -> torch.nn.Linear:
    return torch.nn.Linear(size, size)


def test_a_later_round_gets_what_the_first_has_built() -> None:
    kept_values = KeptValues()
    first, other = kept_values.keep(build, 2), kept_values.keep(build, 2)
    kept_values.begin_round(restores=True)
    assert kept_values.keep(build, 2) is first
    assert kept_values.keep(build, 2) is other
    assert first is not other


def test_a_round_that_starts_from_nothing_builds_everything_anew() -> None:
    kept_values = KeptValues()
    first = kept_values.keep(build, 2)
    kept_values.begin_round(restores=False)
    assert kept_values.keep(build, 2) is not first


def test_another_number_among_the_arguments_builds_anew() -> None:
    kept_values = KeptValues()
    kept_values.keep(build, 2)
    kept_values.begin_round(restores=True)
    assert kept_values.keep(build, 3).in_features == 3


def test_gradients_of_an_interrupted_iteration_are_cleared() -> None:
    kept_values = KeptValues()
    model = kept_values.keep(build, 2)
    model(torch.ones(2)).sum().backward()
    kept_values.begin_round(restores=True)
    assert kept_values.keep(build, 2).weight.grad is None


def test_old_and_new_processes_draw_the_same_numbers_after_keep() -> None:
    old, new = KeptValues(), KeptValues()
    torch.manual_seed(0)
    old.keep(build, 2)
    torch.rand(7)
    old.begin_round(restores=True)
    torch.manual_seed(0)
    old.keep(build, 2)
    here = torch.rand(3)
    torch.manual_seed(0)
    new.keep(build, 2)
    assert torch.equal(here, torch.rand(3))


def test_old_and_new_processes_draw_the_same_numbers_after_a_builder_that_draws_from_any_generator() -> None:
    def build_drawing() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(1))]

    def enter(kept_values: KeptValues) -> list[float]:
        seed_cpu_generators(5)
        return [*kept_values.keep(build_drawing), *build_drawing()]

    old = KeptValues()
    first = enter(old)
    old.begin_round(restores=True)
    assert enter(old) == first == enter(KeptValues())


def optimizer_of(model: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.5)


@pytest.mark.parametrize("changed", [False, True], ids=["same", "built again"])
@pytest.mark.parametrize(
    "keep_optimizer",
    [
        lambda kept, model: kept.keep(optimizer_of, model),
        lambda kept, model: kept.keep(torch.optim.SGD, model.parameters(), lr=0.5),
        lambda kept, model: kept.keep(lambda: optimizer_of(model)),
        lambda kept, model: kept.keep(lambda: [optimizer_of(model)])[0],
    ],
    ids=["of a model", "of parameters", "of a closure", "in a list"],
)
def test_a_kept_optimizer_trains_the_model_of_this_round(
    changed: bool, keep_optimizer: Callable[[KeptValues, torch.nn.Module], torch.optim.SGD]
) -> None:
    kept_values = KeptValues()
    first = keep_optimizer(kept_values, kept_values.keep(build, 2))
    kept_values.begin_round(restores=True)
    model = kept_values.keep(build, 3 if changed else 2)
    optimizer = keep_optimizer(kept_values, model)
    assert [id(parameter) for parameter in optimizer.param_groups[0]["params"]] == list(map(id, model.parameters()))
    assert (optimizer is first) is not changed


def test_a_kept_optimizer_of_a_model_that_is_not_kept_is_built_again() -> None:
    kept_values = KeptValues()
    for round_ in range(3):
        kept_values.begin_round(restores=round_ > 0)
        model = build(2)
        optimizer = kept_values.keep(torch.optim.SGD, model.parameters())
        assert optimizer.param_groups[0]["params"][0] is model.weight


def test_what_is_kept_of_a_model_that_is_built_again_is_built_again() -> None:
    kept_values = KeptValues()
    for size in (2, 3, 3):
        kept_values.begin_round(restores=True)
        model = kept_values.keep(build, size)
        assert kept_values.keep(torch.nn.Sequential, model)[0] is model
        assert kept_values.keep(lambda: [model])[0] is model  # noqa: B023


def test_what_is_built_again_is_freed_before() -> None:
    kept_values, alive = KeptValues(), list[int]()

    class Large(torch.nn.Linear):
        count = 0

        def __init__(self, size: int) -> None:
            alive.append(Large.count)
            Large.count += 1
            super().__init__(size, size)

        def __del__(self) -> None:
            Large.count -= 1

    kept_values.keep(Large, 2)
    kept_values.begin_round(restores=True)
    kept_values.keep(Large, 3)
    assert alive == [0, 0]


def test_what_a_round_has_sharded_is_dropped_at_its_end() -> None:
    kept_values = KeptValues()
    model = kept_values.keep(build, 2)
    model.weight.device_mesh = "a mesh"  # pyright: ignore[reportAttributeAccessIssue]
    optimizer = kept_values.keep(torch.optim.SGD, [torch.nn.Parameter(torch.ones(1))])
    other = kept_values.keep(build, 2)
    references = [weakref.ref(model), weakref.ref(optimizer), weakref.ref(other)]
    del model, optimizer, other
    kept_values.end_round()
    gc.collect()
    assert [reference() is None for reference in references] == [True, True, False]


def test_what_a_round_has_sharded_in_place_is_built_again() -> None:
    kept_values = KeptValues()
    first = kept_values.keep(build, 2)
    first.weight.device_mesh = "a mesh"  # pyright: ignore[reportAttributeAccessIssue]
    kept_values.begin_round(restores=True)
    assert kept_values.keep(build, 2) is not first


def test_what_belongs_to_a_process_group_is_refused_by_name() -> None:
    class Sharded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.weight.device_mesh = "a mesh"  # pyright: ignore[reportAttributeAccessIssue]

    with pytest.raises(TypeError, match=r"Sharded.*keep the model before"):
        KeptValues().keep(Sharded)


@pytest.mark.long
def test_a_kept_compiled_model_is_not_compiled_again_in_a_later_round(tmp_path: Path, forks: Forks) -> None:
    script = Path(__file__).with_name("compiled_script.py")
    places = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    places["MASTER_PORT"] = str(free_port(random.Random()))
    number = forks.start([str(script), str(tmp_path / "counts")], places, tmp_path / "err")
    assert forks.wait(number) == 0, (tmp_path / "err").read_text()
    assert (tmp_path / "counts").read_text() == "[1, 1, 1]"


class Kept(NamedTuple):
    """A model with a frozen part, and its optimizer."""

    model: torch.nn.Sequential
    optimizer: torch.optim.SGD


def build_both() -> Kept:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(), torch.nn.Linear(2, 2))
    model[0].requires_grad_(False)
    model[0].eval()
    return Kept(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))


def test_a_round_that_ended_in_an_evaluation_leaves_no_kept_model_in_that_mode() -> None:
    kept_values = KeptValues()
    model = kept_values.keep(build_both).model
    model.eval()
    kept_values.begin_round(restores=True)
    assert kept_values.keep(build_both).model is model
    assert [module.training for module in model.modules()] == [True, False, True, True]


def test_what_a_round_froze_or_freed_is_trained_as_it_was_built() -> None:
    kept_values = KeptValues()
    model = kept_values.keep(build_both).model
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)
    kept_values.begin_round(restores=True)
    kept_values.keep(build_both)
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, False, True, True]


def test_hooks_of_a_round_do_not_run_in_the_next_one() -> None:
    kept_values, calls = KeptValues(), list[str]()
    for round_ in range(3):
        kept_values.begin_round(restores=round_ > 0)
        model, optimizer = kept_values.keep(build_both)
        calls.clear()
        model[2].register_forward_hook(lambda *_: calls.append("forward"))
        model[2].register_forward_pre_hook(lambda *_: calls.append("before"))
        model.register_full_backward_hook(lambda *_: calls.append("backward"))
        weight = next(model[2].parameters())
        weight.register_hook(lambda gradient: calls.append("gradient"))
        weight.register_post_accumulate_grad_hook(lambda _: calls.append("accumulated"))
        optimizer.register_step_post_hook(lambda *_: calls.append("step"))
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()
        optimizer.step()
        assert sorted(calls) == ["accumulated", "backward", "before", "forward", "gradient", "step"]


def test_a_hook_of_the_builder_stays() -> None:
    calls = list[int]()

    def build_hooked() -> torch.nn.Linear:
        model = torch.nn.Linear(2, 2)
        model.weight.register_hook(lambda gradient: calls.append(1))
        return model

    kept_values = KeptValues()
    kept_values.keep(build_hooked)
    kept_values.begin_round(restores=True)
    kept_values.keep(build_hooked)(torch.ones(2)).sum().backward()
    assert calls == [1]


def test_a_schedule_begins_from_the_optimizers_first_learning_rate() -> None:
    kept_values = KeptValues()
    for round_ in range(2):
        kept_values.begin_round(restores=round_ > 0)
        optimizer = kept_values.keep(build_both).optimizer
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        assert schedule.base_lrs == [0.5]
        optimizer.step()
        schedule.step()
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    kept_values.begin_round(restores=True)
    assert len(kept_values.keep(build_both).optimizer.param_groups) == 1


class Learner:
    """A script's own object."""

    def __init__(self) -> None:
        self.model = build(2)


def test_what_is_trained_inside_a_scripts_own_object_is_given_back_as_built() -> None:
    kept_values = KeptValues()
    learner = kept_values.keep(Learner)
    learner.model(torch.ones(2)).sum().backward()
    learner.model.eval()
    kept_values.begin_round(restores=True)
    assert kept_values.keep(Learner) is learner
    assert learner.model.training
    assert learner.model.weight.grad is None


def build_scaled() -> tuple[torch.nn.Linear, torch.optim.SGD, torch.amp.GradScaler]:
    model = build(2)
    return model, torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu")


@pytest.mark.parametrize("interrupted", ["unscaled", "stepped"])
def test_a_scaler_of_gradients_forgets_the_iteration_that_was_interrupted(interrupted: str) -> None:
    kept_values = KeptValues()

    def begin_iteration() -> tuple[torch.optim.SGD, torch.amp.GradScaler]:
        model, optimizer, scaler = kept_values.keep(build_scaled)
        scaler.scale(model(torch.ones(2)).sum()).backward()
        scaler.unscale_(optimizer)
        return optimizer, scaler

    optimizer, scaler = begin_iteration()
    if interrupted == "stepped":
        scaler.step(optimizer)
    kept_values.begin_round(restores=True)
    begin_iteration()  # torch raises if the scaler has unscaled, or stepped, before.
