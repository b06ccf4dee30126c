"""A dataset and a model small enough that a whole training takes seconds."""

import json
from pathlib import Path

import numpy as np
import pytest

from everstep.runtime.data import IndexedWriter

VOCAB = 64


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """4000 tokens with a pattern to learn; no tokenizer, for nothing here decodes."""
    folder = tmp_path / "data"
    folder.mkdir()
    tokens = np.arange(4000) * 7 % VOCAB
    split_meta = {"prefix": "train", "documents": 1, "tokens": len(tokens)}
    with IndexedWriter(folder / "train", np.uint16) as writer:
        writer.add(tokens)
    meta = {
        "version": 1,
        "train": split_meta,
        "validation": split_meta,
        "tokenizer": "tokenizer.json",
        "vocab_size": VOCAB,
    }
    (folder / "dataset.json").write_text(json.dumps(meta))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A Hugging Face directory of a Llama with one layer."""
    import torch
    from transformers.models.llama import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    folder = tmp_path / "model"
    LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=VOCAB)).save_pretrained(folder)
    return folder
