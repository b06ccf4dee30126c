"""How much shared memory a node is given for what it stages."""

import json
from pathlib import Path

import pytest

from everstep.steps.train.config import Config
from everstep.steps.train.shared_memory import model_parameters, shared_memory_bytes


def model(folder: Path, numbers: int) -> str:
    """A directory with weights in two files, one of them of half precision."""
    folder.mkdir()
    for name, kind, width in (("a", "F32", 4), ("b", "BF16", 2)):
        tensor = {"dtype": kind, "shape": [numbers], "data_offsets": [0, numbers * width]}
        header = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor}).encode()
        data = len(header).to_bytes(8, "little") + header
        (folder / f"{name}.safetensors").write_bytes(data + bytes(numbers * width))
    return str(folder)


def test_a_models_numbers_are_counted_whatever_their_width(tmp_path: Path) -> None:
    assert model_parameters(model(tmp_path / "m", 1000)) == 2000


def test_three_states_of_a_model_or_of_the_users_script_fit(tmp_path: Path) -> None:
    states = 3 * 12 * 2_000_000
    assert states < shared_memory_bytes(Config(model=model(tmp_path / "m", 1_000_000))) < 2.5 * states
    assert 3e10 < shared_memory_bytes(Config(script="mine.py", state_bytes=1e10)) < 3.2e10


@pytest.mark.parametrize("config", [Config(), Config(script="mine.py", model="anything")])
def test_otherwise_the_template_has_to_do(config: Config) -> None:
    assert shared_memory_bytes(config) == 0
