"""How much memory a training needs, known before it starts: a node's /dev/shm, and the machine that all nodes share.

Both are for steps/train/llama.py, whose model and optimizer are known; a user's script may need anything.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.steps.entry import StepError
from everstep.steps.model import smollm2
from everstep.steps.model.directory import TINY, TINY_SIZES, open_directory
from everstep.steps.model.tokenizer import TRAINED_SIZE, find_tokenizer, vocabulary_size
from everstep.steps.train.job import job_of, ranks

if TYPE_CHECKING:
    from everstep.runtime.job.spec import JobSpec
    from everstep.steps.train.config import Config

STAGED_BYTES, TRAINED_BYTES = 12, 16
"""Of each parameter, in float32: staged are the weight and AdamW's two moments; training keeps a gradient besides."""
WIDTH = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "U8": 1, "I8": 1}
"""Bytes of a number, by the type names of safetensors' format."""
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""A number of bytes, or `max` (Linux, "Control Group v2")."""


def shared_memory_bytes(config: "Config") -> int:
    """Bytes of /dev/shm for one node; 0: unknown, the template's size must do.

    The ranks of a node stage one copy of a replicated state; for a user's script `state_bytes` says how much. With
    several peer copies the state is taken for a sharded one.
    """
    state = int(config.state_bytes)
    if not state and not config.script and config.model != TINY:
        state = STAGED_BYTES * model_parameters(config.model)
    return _staged_bytes(state + state // 50, job_of(config).peer_copies) + (64 << 20) if state else 0


def require_memory(
    config: "Config", spec: "JobSpec", devices: Sequence[str], model: str, vocabulary: int, cause: str
) -> None:
    """Raise StepError if this machine, which all nodes share, has less memory than the training needs at the least.

    `vocabulary`: tokens that the data may have. `cause` begins the message: the flag whose value makes the model large.
    The least is the staged states of each node and, without `devices` that train, the model with gradients and
    optimizer on each rank and the logits of the samples of one pass with their gradients. Activations and the libraries
    themselves are left out.
    """
    if config.script:
        return
    nodes, workers = sum(role.nodes for role in spec.roles.values()), ranks(spec)
    parameters = _parameters(model, vocabulary)
    least = nodes * _staged_bytes(STAGED_BYTES * parameters)
    if not devices:
        samples = max(config.global_batch, workers)
        samples = min(samples, workers * config.micro_batch) if config.micro_batch else samples
        least += workers * TRAINED_BYTES * parameters + 2 * 4 * samples * config.sequence_length * vocabulary
    if least > (available := machine_bytes()):
        raise StepError(
            f"{cause}: with {vocabulary} tokens the model has {parameters / 1e6:.0f} M parameters; training it on "
            f"{nodes} nodes takes at least {least / 1e9:.0f} GB of memory, this machine has {available / 1e9:.0f} GB: "
            "give a smaller one, fewer --nodes, or --target argo"
        )


def require_memory_for(config: "Config", model: str, tokenizer: str) -> None:
    """The same before anything is tokenized: for the --model and --tokenizer that a user typed."""
    from everstep.runtime.platform.devices import TooFewDevices, fit_to_devices, machine_devices

    devices = machine_devices(os.environ)
    try:
        spec, _ = fit_to_devices(job_of(config), devices)
    except TooFewDevices as error:
        raise StepError(str(error)) from None
    if tokenizer:
        size = vocabulary_size(find_tokenizer(tokenizer, "--tokenizer").read_bytes())
        cause = f"--tokenizer {tokenizer}" if model == TINY else f"--model {model}"
    else:
        size, cause = TRAINED_SIZE, f"--model {model}"
    require_memory(config, spec, devices, model, size, cause)


def machine_bytes(meminfo: Path = Path("/proc/meminfo"), limit: Path = MEMORY_LIMIT) -> int:
    """Memory of this machine, or what its control group may use of it."""
    total = int(meminfo.read_text().partition("MemTotal:")[2].split()[0]) << 10
    try:
        return min(total, int(limit.read_text()))
    except (OSError, ValueError):  # No such file outside of a control group; `max`: no limit.
        return total


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


def tiny_parameters(vocabulary: int) -> int:
    """Parameters of `tiny`: a Llama whose output layer is its embedding."""
    width, inner = TINY_SIZES["hidden_size"], TINY_SIZES["intermediate_size"]
    layer = 4 * width * width + 3 * width * inner + 2 * width  # Attention, the gated MLP, two norms.
    return vocabulary * width + TINY_SIZES["num_hidden_layers"] * layer + width


def _parameters(model: str, vocabulary: int) -> int:
    if model == TINY:
        return tiny_parameters(vocabulary)
    return smollm2.PARAMETERS if model == smollm2.NAME else model_parameters(model)


def _staged_bytes(state: int, copies: int = 1) -> int:
    from everstep.runtime.checkpoint.node.core.slots import SLOTS, copy_slots
    from everstep.runtime.checkpoint.shard.sizes import segment_bytes

    own = segment_bytes(SLOTS + (copies > 1), state)
    return own + copies * segment_bytes(copy_slots(copies), state) if copies > 1 else own
