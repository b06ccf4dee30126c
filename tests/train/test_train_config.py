"""What the training refuses before anything starts."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hera.workflows import Parameter

from everstep.steps.entry import StepError
from everstep.steps.train import Config
from everstep.steps.train.config import LLAMA
from everstep.steps.train.template import task, template


def model_folder(folder: Path, **changes: object) -> Path:
    folder.mkdir()
    config = {"model_type": "llama", "vocab_size": 100, "max_position_embeddings": 256, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def dataset(folder: Path, vocab_size: int = 100, tokens: int = 5000) -> str:
    folder.mkdir()
    (folder / "dataset.json").write_text(json.dumps({"train": {"tokens": tokens}, "vocab_size": vocab_size}))
    return str(folder)


def refusal_of(**changes: object) -> str:
    with pytest.raises(StepError) as caught:
        Config(**changes).check()  # type: ignore[arg-type]
    assert caught.value.code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_replays_come_every_hundred_iterations_and_the_store_gets_those_states() -> None:
    whole = Config(certify_replay=True).with_default_cadence()
    assert (whole.certify_interval, whole.persist_interval) == (100, 100)
    assert "must be a multiple of --certify-interval 100" in refusal_of(certify_replay=True, persist_interval=150)
    own = Config(certify_replay=True, certify_interval=25)
    assert own.with_default_cadence() == own


def test_the_defaults_can_be_run() -> None:
    config = Config()
    config.check()
    assert (config.nodes, config.min_nodes, config.model) == (2, 1, "tiny")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": 0}, "--nodes 0: must be at least 1"),
        ({"min_nodes": 0}, "--min-nodes 0: must be at least 1"),
        ({"min_nodes": 3}, "--min-nodes 3: more than --nodes 2"),
        ({"workers_per_node": 0}, "--workers-per-node 0"),
        ({"iterations": 0}, "--iterations 0"),
        ({"persist_interval": 0}, "--persist-interval 0"),
        ({"checkpoint_overhead": "100%"}, "--checkpoint-overhead 100%: give a share of the time, such as 1%"),
        ({"checkpoint_overhead": "1%", "persist_interval": 20}, "give only one of them"),
        ({"persist_bytes_per_s": -1.0}, "--persist-bytes-per-s -1"),
        ({"global_batch": 1}, "fewer samples than the 2 ranks"),
        ({"learning_rate": -1.0}, "--learning-rate -1"),
        ({"learning_rate": float("nan")}, "--learning-rate nan"),
        ({"warmup": -1}, "--warmup -1"),
        ({"avoid_hosts": "local-1"}, "JSON list"),
        ({"avoid_hosts": "[1]"}, "JSON list"),
        ({"host_order": "local-1"}, "--host-order local-1: must be a JSON list"),
        ({"network_check": "maybe"}, "--network-check maybe: use auto, True or False"),
        ({"network_check": "False", "exclude_straggler": True}, "--exclude-straggler: part of --network-check"),
        ({"network_check": "False", "switchbox_check": True}, "--switchbox-check: part of --network-check"),
        ({"switchbox_check": True, "box_pairs": "0:0"}, "--box-pairs: device 0"),
        ({"job": "../up"}, "--job"),
        ({"script": "no/such.py"}, "--script no/such.py: no such file"),
        ({"script_args": "--x"}, "give one"),
        ({"script_settings": False}, "--script-settings False: the default script needs its settings"),
        ({"precision": "fp8"}, "--precision fp8: not known; use fp32 or bf16"),
        ({"script": __file__, "compile": True, "micro_batch": 2}, "--compile, --micro-batch: the default script's"),
        ({"micro_batch": -1}, "--micro-batch -1"),
        ({"spares": -1}, "--spares -1"),
        ({"spare_nodes": -1}, "--spare-nodes -1"),
        ({"model": "no/such"}, "neither `tiny` nor a directory"),
        ({"dataset": "no/such"}, "no dataset.json there"),
    ],
)
def test_bad_input_is_one_line_with_its_flag(changes: dict, words: str) -> None:
    assert words in refusal_of(**changes)


@pytest.mark.parametrize(
    ("choice", "in_pods", "checks"),
    [("auto", True, True), ("auto", False, False), ("true", False, True), ("False", True, False)],
)
def test_nodes_are_checked_by_default_where_each_has_a_pod_of_its_own(choice: str, in_pods: bool, checks: bool) -> None:
    assert Config(network_check=choice).checks_nodes(in_pods=in_pods) is checks


def test_a_model_directory_without_weights_is_refused(tmp_path: Path) -> None:
    assert "no weights in it (*.safetensors)" in refusal_of(model=str(model_folder(tmp_path / "m")))


def test_a_model_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    assert "a gpt2 model; only llama" in refusal_of(model=str(model_folder(tmp_path / "m", model_type="gpt2")))


def test_sequences_longer_than_the_model_reads_are_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "model.safetensors").touch()
    assert "reads at most 256 tokens" in refusal_of(model=str(folder), sequence_length=512)


def test_a_dataset_with_more_tokens_than_the_model_knows_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "model.safetensors").touch()
    data = dataset(tmp_path / "d", vocab_size=101)
    assert "100 tokens, the dataset 101; tokenize with" in refusal_of(model=str(folder), dataset=data)
    Config(model=str(folder), dataset=dataset(tmp_path / "e")).check()


def test_a_dataset_shorter_than_one_sample_is_refused(tmp_path: Path) -> None:
    assert "fewer than one" in refusal_of(dataset=dataset(tmp_path / "d", tokens=96))


def test_the_default_script_is_given_its_flags() -> None:
    config = Config(dataset="d#train", iterations=7)
    assert config.script_path() == LLAMA
    assert {"--dataset=d#train", "--iterations=7", "--model=tiny"} <= set(config.script_arguments())


DECLARES = """
import argparse, click
parser = argparse.ArgumentParser(description="needs --seed")
parser.add_argument("-d", "--dataset")
parser.add_argument("--global_batch", type=int)
"""


def test_a_script_gets_the_flags_that_it_declares_as_it_spells_them(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(DECLARES)
    config = Config(dataset="d#train", script=str(script), script_args="--width 3")
    assert config.script_arguments() == ["--dataset=d#train", "--global_batch=8", "--width", "3"]


def test_names_in_a_loop_over_flags_are_declared_too(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text('for name in ("seed", "global_batch"):\n    parser.add_argument(f"--{name}")\n')
    assert Config(dataset="d", script=str(script)).script_arguments() == ["--global_batch=8", "--seed=0"]


@pytest.mark.parametrize("own", ["--dataset mine", "--dataset=mine"])
def test_what_the_user_gives_a_script_is_not_given_again(own: str, tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(DECLARES)
    assert Config(dataset="d", script=str(script), script_args=f"{own} --global-batch 4").script_arguments() == [
        *own.split(), "--global-batch", "4",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "import sys\nprint(sys.argv)\n", "def (:\n", "\0"])
def test_a_script_that_declares_nothing_gets_no_flag(text: str, tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(text)
    assert Config(dataset="d", script=str(script)).script_arguments() == []


def test_what_the_step_knows_is_in_the_scripts_environment() -> None:
    variables = Config(dataset="d#train", iterations=7, script="mine.py").script_variables()
    assert variables == {
        "EVERSTEP_DATASET": "d#train", "EVERSTEP_MODEL": "tiny", "EVERSTEP_ITERATIONS": "7",
        "EVERSTEP_SEQUENCE_LENGTH": "96", "EVERSTEP_GLOBAL_BATCH": "8", "EVERSTEP_LEARNING_RATE": "0.003",
        "EVERSTEP_WARMUP": "20", "EVERSTEP_SEED": "0",
    }  # fmt: skip


def test_own_arguments_come_after_the_declared_flags_and_know_the_dataset(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.touch()
    data = dataset(tmp_path / "a b")
    config = Config(dataset=data, script=str(script), script_args="--data={dataset} 'x y' -n {iterations}")
    config.check()
    assert config.script_arguments() == [f"--data={data}", "x y", "-n", "200"]


def test_a_script_that_is_to_know_no_settings_gets_its_own_arguments_as_they_stand(tmp_path: Path) -> None:
    (script := tmp_path / "train.py").write_text("""p.add_argument("--model"); p.add_argument("--seed")""")
    config = Config(script=str(script), script_args="--name {model} 'a b'", script_settings=False)
    assert config.script_arguments() == ["--name", "{model}", "a b"]


def test_the_job_of_a_step_by_hand_has_the_name_of_its_run() -> None:
    assert Config(run="first").job_name() == "first-train"
    assert Config(run="first", job="own").job_name() == "own"
    with pytest.raises(StepError, match=r"--run '\.\./x': use letters, digits"):
        Config(run="../x", job="own").check()


def test_every_setting_of_a_training_is_reachable_from_its_template() -> None:
    """But those that any workflow gives it: the store, the run, the job's name, where outputs are."""
    parameters: Any = template().inputs
    inputs = {str(parameter.name) for parameter in parameters if isinstance(parameter, Parameter)}
    own = {entry.name.replace("_", "-") for entry in fields(Config)}
    assert own - inputs == {"store", "run", "outputs", "job"}
    settings = {"learning_rate": 0.01, "warmup": 3, "seed": 7, "script": "mine.py", "script_args": "--width 2"}
    arguments = task("two", **settings).arguments
    assert isinstance(arguments, dict)
    assert {name: arguments[name.replace("_", "-")] for name in settings} == {k: str(v) for k, v in settings.items()}


def test_the_default_script_gets_its_own_flags_only_where_they_differ() -> None:
    assert not [
        flag for flag in Config().script_arguments() if flag.startswith(("--precision", "--compile", "--micro"))
    ]
    arguments = Config(precision="bf16", compile=True, micro_batch=2).script_arguments()
    assert {"--precision=bf16", "--compile", "--micro-batch=2"} <= set(arguments)
