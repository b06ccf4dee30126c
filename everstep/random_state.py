"""The random state of Python, numpy and torch, as a part of a checkpointed state."""

import random
from typing import Any

import numpy as np
import torch


class RandomState:
    """Has `state_dict` and `load_state_dict`, which also sets the state."""

    def __init__(self) -> None:
        self._saved: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        version, numbers, gauss = random.getstate()
        numpy = np.random.get_state(legacy=False)
        keys = torch.from_numpy(numpy["state"]["key"].astype(np.int64))
        state = {
            "python": [version, list(numbers), gauss],
            "numpy": {**numpy, "state": {"key": keys, "pos": int(numpy["state"]["pos"])}},
            "torch": torch.get_rng_state(),
        }
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict
        self.put_back()

    def put_back(self) -> None:
        """Set the random state to what it was when the restored state was saved."""
        states = self._saved
        version, numbers, gauss = states["python"]
        random.setstate((version, tuple(numbers), gauss))
        numpy = states["numpy"]
        keys = numpy["state"]["key"].numpy().astype(np.uint32)
        np.random.set_state({**numpy, "state": {"key": keys, "pos": numpy["state"]["pos"]}})
        torch.set_rng_state(states["torch"])
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"])
