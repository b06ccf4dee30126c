"""TorchTune's last release: its recipes as they stand, and their parts in a loop."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from tests.frameworks.environments import environment
from tests.trained import Start, train_twice

SCRIPT, RECIPE = (Path(__file__).with_name(f"torchtune_{name}.py") for name in ("script", "recipe"))
EPOCHS, STEPS = 4, 5
SIZES: dict[str, int] = {
    "vocab_size": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "embed_dim": 32, "intermediate_dim": 64,
    "max_seq_len": 32,
}  # fmt: skip


@pytest.fixture(scope="session")
def python() -> Path:
    """One that has TorchTune."""
    return environment("torchtune", "torchtune==0.6.1", "torchao<0.16")


def write_weights(folder: Path) -> None:
    """A small Llama as Hugging Face's hub has large ones."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=SIZES["vocab_size"],
            hidden_size=SIZES["embed_dim"],
            intermediate_size=SIZES["intermediate_dim"],
            num_hidden_layers=SIZES["num_layers"],
            num_attention_heads=SIZES["num_heads"],
            num_key_value_heads=SIZES["num_kv_heads"],
        )
    )
    model.save_pretrained(folder)


def recipe_config(weights: Path, output: Path, batch_size: int) -> dict[str, Any]:
    """What recipes of full finetuning read."""
    return {
        "output_dir": str(output), "device": "cpu", "dtype": "fp32", "seed": 7,
        "tokenizer": {"_component_": "torchtune_recipe.Tokenizer"},
        "dataset": {"_component_": "torchtune_recipe.counting"}, "shuffle": True, "batch_size": batch_size,
        "model": {"_component_": "torchtune.models.llama3.llama3", **SIZES},
        "checkpointer": {
            "_component_": "everstep.torchtune.RecipeCheckpointer",
            "recipe": {"seed": "${seed}", "total_epochs": "${epochs}", "max_steps_per_epoch": "${max_steps_per_epoch}"},
            "base": {
                "_component_": "torchtune.training.FullModelHFCheckpointer", "checkpoint_dir": str(weights),
                "checkpoint_files": ["model.safetensors"], "output_dir": "${output_dir}", "model_type": "LLAMA3",
            },
        },
        "resume_from_checkpoint": True, "epochs": EPOCHS, "max_steps_per_epoch": STEPS,
        "gradient_accumulation_steps": 1, "optimizer_in_bwd": False, "compile": False,
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 0.003},
        "lr_scheduler": {
            "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup", "num_warmup_steps": 3,
        },
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "metric_logger": {"_component_": "everstep.torchtune.MetricLogger"},
    }  # fmt: skip


@pytest.mark.parametrize(("recipe", "ranks"), [("full_finetune_distributed", 2), ("full_finetune_single_device", 1)])
def test_a_recipe_as_it_stands_goes_on_bit_for_bit(
    trained: Start, python: Path, tmp_path: Path, recipe: str, ranks: int
) -> None:
    write_weights(tmp_path / "weights")
    file = tmp_path / "recipe.yaml"  # JSON is YAML.
    file.write_text(json.dumps(recipe_config(tmp_path / "weights", tmp_path / "output", 8 // ranks)))
    words = f"{recipe} --config {file}"
    _, killed = train_twice(trained, str(RECIPE), words, killed_at=2 * STEPS, nodes=ranks, python=python)
    steps = [line["iteration"] for line in killed.telemetry() if "loss" in line]
    assert steps == list(range(1, EPOCHS * STEPS + 1)), "it went on after the epoch that it had done"
    assert (tmp_path / "output" / f"epoch_{EPOCHS - 1}" / "model-00001-of-00001.safetensors").exists()


def test_the_parts_of_a_recipe_go_on_bit_for_bit(trained: Start, python: Path) -> None:
    _, killed = train_twice(trained, str(SCRIPT), python=python)
    assert killed.last_words().count("done after 20 steps") == 2
