"""A Hugging Face Trainer that survives: the callback is the only line of Everstep.

everstep launch --standalone --nproc-per-node 2 --max-restarts 3 examples/trainer.py
python pipelines/llama_finetune.py --script examples/trainer.py --nodes 2
"""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.trainer import Trainer
from transformers.training_args import TrainingArguments

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
    parser = argparse.ArgumentParser(description="Train a small Llama with a Hugging Face Trainer.")
    parser.add_argument("--iterations", type=int, default=40)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=options.iterations,
            per_device_train_batch_size=4,
            learning_rate=3e-3,
            logging_steps=5,
            save_strategy="no",  # Everstep saves every step in memory.
            use_cpu=not torch.cuda.is_available(),
            report_to=[],
            disable_tqdm=True,
        )
        checkpoints = EverstepCallback()
        trainer = Trainer(model=model, args=arguments, train_dataset=Counting(), callbacks=[checkpoints])
        trainer.train(resume_from_checkpoint=checkpoints.resume())
    print(f"done after {trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
