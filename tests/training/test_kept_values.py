"""What a worker keeps from round to round."""

import random
from pathlib import Path

import pytest
import torch

from everstep.kept_values import KeptValues
from everstep.runtime.agent.ports import free_port
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
