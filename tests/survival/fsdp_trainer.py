"""A Hugging Face Trainer with fsdp=True and Everstep's callback, on CPUs."""

import argparse
import os
import tempfile
from typing import Any

import torch
from accelerate import DistributedType, PartialState
from accelerate.parallelism_config import ParallelismConfig
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
    parser = argparse.ArgumentParser(description="Train a small Llama under FSDP2.")
    parser.add_argument("--iterations", type=int, default=20)
    options = parser.parse_args()
    everstep.init()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            attention_dropout=0.2,
        )
    )
    sharding: dict[str, Any] = {"fsdp": True, "fsdp_config": {"version": 2}}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=options.iterations, per_device_train_batch_size=4, learning_rate=3e-3, logging_steps=1,
            save_strategy="no", use_cpu=True, report_to=[], disable_tqdm=True, **sharding,
            parallelism_config=ParallelismConfig(dp_shard_size=int(os.environ["WORLD_SIZE"])),
        )  # fmt: skip
        # Accelerate shards models on devices alone: what it does then it also does on CPUs, if they are called devices.
        assert PartialState().distributed_type is DistributedType.MULTI_CPU
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU
        checkpoints = EverstepCallback()
        trainer = Trainer(model=model, args=arguments, train_dataset=Counting(), callbacks=[checkpoints])
        assert trainer.is_fsdp_enabled
        trainer.train(resume_from_checkpoint=checkpoints.resume())
    kinds = {type(parameter).__name__ for parameter in model.parameters()}
    print(f"done after {trainer.state.global_step} steps with {kinds}")


if __name__ == "__main__":
    main()
