"""What a process holds besides its variables, as a script's function finds it each time it is entered."""

import os
from contextlib import suppress

import torch

from everstep.seeding import generators_state, set_generators_state

_NCCL_ALGORITHMS = "NCCL_ALGO"
"""torch sets it where it makes a group of NCCL while algorithms are deterministic (ProcessGroupNCCL), and
`os.environ` does not hear of it. Ranks that join with different ones choose different algorithms, and wait for ever."""


class EntryState:
    """The state at the first entry. A new process enters with the same one, if the script's top level has made it, as
    by a seed: `put_back` lets a survivor enter alike.

    The end of a round may interrupt a `with torch.no_grad()` or `torch.autocast` before it is undone. Each round
    seeds torch's own generators, on devices too, afterwards. Used in one thread, whose modes these are.
    """

    def __init__(self) -> None:
        self._generators = generators_state()
        self._folder = os.getcwd()
        self._dtype, self._device = torch.get_default_dtype(), torch.get_default_device()
        self._gradients, self._determinism = torch.is_grad_enabled(), _determinism()
        self._autocast = {device: _autocast(device) for device in _devices()}
        self._autocast_cache, self._autocast_depth = torch.is_autocast_cache_enabled(), _autocast_depth()

    def put_back(self) -> None:
        set_generators_state(self._generators)
        with suppress(OSError):  # The folder is gone.
            os.chdir(self._folder)
        torch.set_default_dtype(self._dtype)
        if torch.get_default_device() != self._device:
            torch.set_default_device(self._device)
        torch.set_grad_enabled(self._gradients)
        if _determinism() != self._determinism:
            mode, warn_only = self._determinism
            torch.use_deterministic_algorithms(mode, warn_only=warn_only)
        if _NCCL_ALGORITHMS not in os.environ:
            os.unsetenv(_NCCL_ALGORITHMS)
        for device, (enabled, dtype) in self._autocast.items():
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self._autocast_cache)
        while _autocast_depth() > self._autocast_depth:
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()  # It has the weights of an interrupted iteration.


def _devices() -> set[str]:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return {"cpu", accelerator.type} if accelerator else {"cpu"}


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _autocast(device: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)


def _autocast_depth() -> int:
    """How many `torch.autocast` are entered; torch drops its copies of weights when it leaves the last one."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()
