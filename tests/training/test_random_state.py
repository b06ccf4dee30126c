"""Each rank gets its own random state back, and another one's where there are more ranks than states."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from everstep import random_state
from everstep.random_state import gather_random_states, set_random_state
from everstep.seeding import generators_state, set_generators_state
from tests.forks import Forks
from tests.training.random_ranks import draw


def test_each_rank_gets_its_own_state_back_and_of_fewer_that_of_its_rank_modulo_their_number(
    tmp_path: Path, forks: Forks
) -> None:
    log = tmp_path / "log"
    assert forks.run(["-m", "tests.training.random_ranks", str(tmp_path / "drawn")], {}, log) == 0, log.read_text()
    first, second = (json.loads((tmp_path / f"drawn-{rank}").read_text()) for rank in range(2))
    assert first[0] != second[0]
    assert first == [first[0]] * 4
    assert second == [second[0], second[0], first[0], second[0]]


def test_a_process_by_itself_continues_its_random_numbers() -> None:
    outside = generators_state()
    try:
        draw()
        (state,) = gather_random_states()
        numbers = draw()
        set_random_state([state, "of another rank"])
        assert draw() == numbers
    finally:
        set_generators_state(outside)


def test_the_state_of_any_vendors_device_comes_back_and_one_of_another_kind_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = {"xpu": torch.tensor([1, 2], dtype=torch.uint8), "cuda": torch.tensor([3], dtype=torch.uint8)}

    def module(kind: str) -> SimpleNamespace:
        return SimpleNamespace(
            get_rng_state=lambda: states[kind], set_rng_state=lambda state: states.update({kind: state})
        )

    monkeypatch.setattr(torch, "get_device_module", module)
    monkeypatch.setattr(random_state, "_device_kind", lambda: "xpu")
    outside = generators_state()
    try:
        (saved,) = gather_random_states()
        states["xpu"] = torch.zeros(2, dtype=torch.uint8)
        set_random_state([saved])
        assert states["xpu"].tolist() == [1, 2]
        monkeypatch.setattr(random_state, "_device_kind", lambda: "cuda")
        set_random_state([saved])
        assert states["cuda"].tolist() == [3]
    finally:
        set_generators_state(outside)
