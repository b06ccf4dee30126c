"""TRL's DPOTrainer with Everstep's callback: an untrained model learns a preference, or an adapter of it does."""

import argparse
import tempfile
from typing import Any

import torch
from datasets import Dataset  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
from peft import LoraConfig  # pyright: ignore[reportMissingImports]
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer  # pyright: ignore[reportMissingImports]

from everstep.huggingface import EverstepCallback


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte."""
    words = {chr(byte): number for number, byte in enumerate(range(32, 127))}
    words |= {"<pad>": len(words), "<eos>": len(words) + 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def build_model(words: int) -> LlamaForCausalLM:
    """A very small Llama."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=words, pad_token_id=words - 2, eos_token_id=words - 1, **sizes))


def main() -> None:
    """Prefer the higher number."""
    parser = argparse.ArgumentParser(description="Train with DPO.")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--lora", action="store_true", help="train an adapter; the model without it is the reference")
    options = parser.parse_args()
    tokenizer = build_tokenizer()
    pairs = [{"prompt": f"{n} or {n + 1}? ", "chosen": str(n + 1), "rejected": str(n)} for n in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = DPOConfig(
            folder, max_steps=options.iterations, per_device_train_batch_size=4, learning_rate=1e-3, logging_steps=1,
            save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], disable_tqdm=True,
        )  # fmt: skip
        adapter = LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]) if options.lora else None
        checkpoints = EverstepCallback()
        trainer = DPOTrainer(
            model=build_model(len(tokenizer)), args=arguments,
            train_dataset=Dataset.from_list(pairs), processing_class=tokenizer, callbacks=[checkpoints],
            ref_model=None if adapter else build_model(len(tokenizer)),
            peft_config=adapter,
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=checkpoints.resume())
    print(f"done after {trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
