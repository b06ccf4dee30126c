"""A Hugging Face Trainer with our callback: `trainer_script.py FOLDER PIPE`.

For each line of PIPE, JSON of variables, one forked run; its exit code goes to a line of the file `codes` in FOLDER.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.trainer import Trainer
from transformers.trainer_callback import TrainerCallback, TrainerState
from transformers.training_args import TrainingArguments

from everstep.runtime import faults

PASTED = next(
    block.partition("```")[0]
    for block in (Path(__file__).parents[2] / "docs/how-to/checkpoints.md").read_text().split("```python\n")
    if block.startswith("from everstep.huggingface")
)
"""What the documentation tells."""


class Tokens(Dataset):  # pyright: ignore[reportMissingTypeArgument]
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 12) % 31
        return {"input_ids": tokens, "labels": tokens}


class Watcher(TrainerCallback):
    """A process may die in each evaluation."""

    def on_prediction_step(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        faults.point("script.evaluation", iteration=state.global_step)


def train(folder: str) -> None:
    """Two epochs of 5 steps, shuffled, with dropout; each is followed by an evaluation."""
    torch.set_num_threads(1)  # Makes torch's threads anew after the fork; backward's threads would race to.
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, attention_dropout=0.3, **sizes))
    settings: dict[str, Any] = {
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 2,
        "save_strategy": "no",
        "eval_strategy": "epoch",
        "use_cpu": True,
    }
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=2, **settings
    )
    evaluating = partial(Trainer, eval_dataset=Tokens())
    names: dict[str, Any] = {"Trainer": evaluating, "model": model, "arguments": arguments, "dataset": Tokens()}
    names["watcher"] = Watcher()
    exec(PASTED.replace("[checkpoints]", "[watcher, checkpoints]"), names)
    trainer = names["trainer"]
    logged = [(entry["step"], entry["epoch"]) for entry in trainer.state.log_history if "loss" in entry]
    evaluated = [(entry["step"], entry["eval_loss"]) for entry in trainer.state.log_history if "eval_loss" in entry]
    results = {
        "model": model.state_dict(), "steps": trainer.state.global_step, "logged": logged, "evaluated": evaluated
    }  # fmt: skip
    torch.save(results, os.environ["RESULT"])


def main(folder: str, pipe: str) -> None:
    with open(pipe) as lines, open(f"{folder}/codes", "a", buffering=1) as codes:
        for line in lines:
            if not (pid := os.fork()):
                os.environ.update(json.loads(line))
                train(folder)
                os._exit(0)
            codes.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
