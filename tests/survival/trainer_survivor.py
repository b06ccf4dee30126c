"""A Hugging Face Trainer in a process that outlives rounds: the model is kept, the Trainer made anew in each."""

import argparse
import os
import sys
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.trainer import Trainer
from transformers.training_args import TrainingArguments

import everstep
from everstep.huggingface import EverstepCallback


class Tokens(Dataset):  # pyright: ignore[reportMissingTypeArgument]
    """Samples of 6 to 12 tokens: for dropout, the ranks draw other counts of random numbers."""

    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 6 + index % 7) % 31
        return {"input_ids": tokens, "labels": tokens}


def build() -> LlamaForCausalLM:
    """With dropout, so that random numbers count."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, attention_dropout=0.3, **sizes))


@everstep.main
def main(job: everstep.Context) -> None:
    """One epoch, from the newest checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int)
    options = parser.parse_known_args()[0]
    print(f"process {os.getpid()} is rank {job.rank} of {job.world_size} in round {job.round}", file=sys.stderr)
    settings: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=1, max_steps=options.iterations, logging_steps=1, **settings
        )
        checkpoints = EverstepCallback()
        trainer = Trainer(job.keep(build), arguments, train_dataset=Tokens(), callbacks=[checkpoints])
        trainer.train(resume_from_checkpoint=checkpoints.resume())


if __name__ == "__main__":
    main()
