"""How much shared memory a node is given for what it stages, and what a machine is too small for."""

import json
from pathlib import Path

import pytest

from everstep.steps.entry import StepError
from everstep.steps.model import smollm2
from everstep.steps.train.config import Config
from everstep.steps.train.job import job_of
from everstep.steps.train.memory import (
    machine_bytes,
    model_parameters,
    require_memory,
    require_memory_for,
    shared_memory_bytes,
    tiny_parameters,
)


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


def test_with_several_peer_copies_those_of_other_nodes_fit_too() -> None:
    """Four slots of the node's own, three for each of the two copies that it keeps."""
    sharded = Config(script="mine.py", state_bytes=1e10, peer_copies=2)
    of_spec = Config(script="mine.py", state_bytes=1e10, job_spec='{"peerCopies": 2, "replicaSpecs": {"worker": {}}}')
    assert 10e10 < shared_memory_bytes(sharded) < 10.4e10
    assert shared_memory_bytes(of_spec) == shared_memory_bytes(sharded)


@pytest.mark.parametrize("config", [Config(), Config(script="mine.py", model="anything")])
def test_otherwise_the_template_has_to_do(config: Config) -> None:
    assert shared_memory_bytes(config) == 0


def test_tiny_has_as_many_parameters_as_its_formula_says() -> None:
    from everstep.steps.train.llama import build_model

    model = build_model("tiny", 100, seed=0)
    assert tiny_parameters(100) == sum(parameter.numel() for parameter in model.parameters())


def test_smollm2_has_the_parameters_of_its_published_shape() -> None:
    width, keys, inner = 576, 192, 1536  # hidden_size, 3 key and value heads of 64, intermediate_size: config.json
    layer = 2 * width * width + 2 * width * keys + 3 * width * inner + 2 * width
    assert smollm2.VOCABULARY * width + 30 * layer + width == smollm2.PARAMETERS


def test_a_tokenizer_that_makes_the_model_too_large_for_this_machine_is_refused(tmp_path: Path) -> None:
    tokenizer = tmp_path / "large.json"
    tokenizer.write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1_000_000_000}}}))
    with pytest.raises(
        StepError, match=r"--tokenizer .*large.json: with 1000000001 tokens the model has 256003 M .* at least \d+ GB"
    ) as raised:
        require_memory_for(Config(), "tiny", str(tokenizer))
    assert "\n" not in str(raised.value)


def require(config: Config, devices: tuple[str, ...] = ()) -> None:
    require_memory(config, job_of(config), devices, "tiny", 1_000_000_000, "--dataset d")


def test_so_is_a_dataset_of_so_many_tokens_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="--dataset d: with 1000000000 tokens"):
        require(Config())
    with pytest.raises(StepError, match=r"--model .*: with 8192 tokens the model has 0 M parameters"):
        require_memory_for(Config(nodes=100_000_000, global_batch=100_000_000), model(tmp_path / "m", 1000), "")


def test_the_default_run_and_a_users_script_are_not(tmp_path: Path) -> None:
    require_memory_for(Config(), "tiny", "")
    require(Config(script="mine.py"))


def test_what_devices_train_needs_only_its_staged_states_here(monkeypatch: pytest.MonkeyPatch) -> None:
    staged = 2 * (3 * 12 * tiny_parameters(1_000_000_000))
    monkeypatch.setattr("everstep.steps.train.memory.machine_bytes", lambda: staged + 2**20)
    require(Config(), devices=("0", "1"))
    with pytest.raises(StepError):
        require(Config())


def test_a_smaller_pass_needs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters, logits = tiny_parameters(1_000_000_000), 2 * 4 * 96 * 1_000_000_000
    least = 2 * (3 * 12 + 16) * parameters + 2 * logits
    monkeypatch.setattr("everstep.steps.train.memory.machine_bytes", lambda: least + 2**20)
    require(Config(micro_batch=1))
    with pytest.raises(StepError):
        require(Config())


@pytest.mark.parametrize(("limit", "expected"), [("1000000", 1_000_000), ("max", 8_192_000), ("9999999999", 8_192_000)])
def test_a_machine_has_what_its_control_group_may_use(tmp_path: Path, limit: str, expected: int) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:        8000 kB\nMemFree: 5 kB\n")
    (tmp_path / "limit").write_text(limit)
    assert machine_bytes(tmp_path / "meminfo", tmp_path / "limit") == expected
    assert machine_bytes(tmp_path / "meminfo", tmp_path / "none") == 8_192_000
