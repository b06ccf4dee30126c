"""The random states of Python, numpy and torch, as text: a checkpoint has the same tensors at any number of ranks."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from everstep.runtime.checkpoint.worker.agreement import world_size


class _Generators(msgspec.Struct, frozen=True):
    """Each as its package gives it, with arrays as bytes."""

    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[str, bytes, int, int, float]
    torch: bytes
    device: bytes = b""
    """Of the current device; empty: there is none."""
    kind: str = ""
    """Of that device, by its name in torch.accelerator."""


def random_state() -> str:
    """That of this process."""
    python: Any = random.getstate()
    numpy: Any = np.random.get_state()
    name, keys, *others = numpy
    generators = _Generators(python, (name, keys.tobytes(), *others), torch.get_rng_state().numpy().tobytes())
    if kind := _device_kind():
        device = torch.get_device_module(kind).get_rng_state().cpu().numpy().tobytes()
        generators = msgspec.structs.replace(generators, device=device, kind=kind)
    return msgspec.json.encode(generators).decode()


def _device_kind() -> str:
    """Empty: this process has the CPU alone."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return device.type if device else ""


def gather_random_states() -> list[str]:
    """That of each rank, by rank. With torch.distributed every rank must call it."""
    states = [random_state()] * world_size()
    if len(states) > 1:
        dist.all_gather_object(states, states[0])
    return states


def set_random_state(states: Sequence[str]) -> None:
    """Set this process's to that of its rank among `states`; if these are fewer, to that of its rank modulo their
    number. A device of another kind than at that time keeps its own."""
    rank = dist.get_rank() if world_size() > 1 else 0
    generators = msgspec.json.decode(states[rank % len(states)], type=_Generators)
    random.setstate(generators.python)
    name, keys, *others = generators.numpy
    numpy: Any = (name, np.frombuffer(keys, np.uint32), *others)
    np.random.set_state(numpy)
    torch.set_rng_state(torch.frombuffer(bytearray(generators.torch), dtype=torch.uint8))
    if generators.kind and generators.kind == _device_kind():
        state = torch.frombuffer(bytearray(generators.device), dtype=torch.uint8)
        torch.get_device_module(generators.kind).set_rng_state(state)
