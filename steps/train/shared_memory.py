"""How much shared memory a node needs: the staged state, times the keeper's slots for it."""

import json
from typing import TYPE_CHECKING

from everstep.steps.model.directory import TINY, open_directory

if TYPE_CHECKING:
    from everstep.steps.train.config import Config

BYTES_A_PARAMETER = 12
"""For steps/train/llama.py: a weight and AdamW's two moments, in float32."""
WIDTH = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "U8": 1, "I8": 1}
"""Bytes of a number, by the type names of safetensors' format."""


def shared_memory_bytes(config: "Config") -> int:
    """Bytes of /dev/shm for one node; 0: unknown, the template's size must do.

    The ranks of a node stage one copy of a replicated state; for a user's script `state_bytes` says how much.
    """
    from everstep.runtime.checkpoint.node.core.slots import SLOTS
    from everstep.runtime.checkpoint.shard.sizes import segment_bytes

    state = int(config.state_bytes)
    if not state and not config.script and config.model != TINY:
        state = BYTES_A_PARAMETER * model_parameters(config.model)
    return segment_bytes(SLOTS, state + state // 50) + (64 << 20) if state else 0


def model_parameters(model: str) -> int:
    """The number of parameters in a Hugging Face directory, from its safetensors headers."""
    store, total = open_directory(model), 0
    for entry in store.list(""):
        if entry.key.endswith(".safetensors"):
            length = int.from_bytes(store.get(entry.key, 0, 8), "little")
            header = json.loads(store.get(entry.key, 8, length))
            for name, tensor in header.items():
                if name != "__metadata__":
                    begin, end = tensor["data_offsets"]
                    total += (end - begin) // WIDTH.get(tensor["dtype"], 4)
    return total
