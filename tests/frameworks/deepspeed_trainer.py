"""A Hugging Face Trainer with its `deepspeed` argument and Everstep's callback, on CPUs."""

import argparse
import tempfile
from typing import Any

import deepspeed  # pyright: ignore[reportMissingImports]
import torch
from torch.utils.data import Dataset
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.trainer import Trainer
from transformers.training_args import TrainingArguments

import everstep
from everstep.huggingface import EverstepCallback


class Counting(Dataset):  # pyright: ignore[reportMissingTypeArgument]
    """Sequences of numbers that count up, modulo 31."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 12) % 31
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train a very small Llama to count."""
    parser = argparse.ArgumentParser(description="Train a small Llama with DeepSpeed.")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--stage", type=int, default=1, choices=(1, 2, 3))
    options = parser.parse_args()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # It would be compiled first.
    everstep.init()
    torch.manual_seed(0)
    settings = {
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": options.stage, "stage3_param_persistence_threshold": 0},
        "zero_force_ds_cpu_optimizer": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=options.iterations, per_device_train_batch_size=4, learning_rate=3e-3, logging_steps=1,
            save_strategy="no", use_cpu=True, report_to=[], disable_tqdm=True, deepspeed=settings,
        )  # fmt: skip
        sizes: Any = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=32, attention_dropout=0.2, **sizes))
        checkpoints = EverstepCallback()
        trainer = Trainer(model=model, args=arguments, train_dataset=Counting(), callbacks=[checkpoints])
        trainer.train(resume_from_checkpoint=checkpoints.resume(trainer))
    print(f"done after {trainer.state.global_step} steps with {type(trainer.model_wrapped).__name__}")


if __name__ == "__main__":
    main()
