"""The random generators of the CPU (torch's, numpy's, Python's): the same seed repeats the same numbers."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

GeneratorsState = tuple[torch.Tensor, dict[str, Any], Any]
"""Of torch's generator, numpy's and Python's."""


def seed_cpu_generators(seed: int) -> None:
    """Seed torch's CPU generator, numpy's and Python's own with a number of 63 bits; no device's generator."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


class RandomStream:
    """Random numbers of their own for code that draws from the global generators, such as a dataset's `__iter__`."""

    def __init__(self, seed: int) -> None:
        outside = generators_state()
        seed_cpu_generators(seed)
        self._inside = generators_state()
        set_generators_state(outside)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within the block the global generators continue this stream; afterwards they are as before."""
        outside = generators_state()
        set_generators_state(self._inside)
        try:
            yield
        finally:
            self._inside = generators_state()
            set_generators_state(outside)


def generators_state() -> GeneratorsState:
    """Of all three."""
    return torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()


def set_generators_state(state: GeneratorsState) -> None:
    """Let them go on from there."""
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])
    random.setstate(state[2])
