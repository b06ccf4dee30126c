"""How a launcher spells what it is told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

MODULE = ("m", "module")
NO_PYTHON = "no_python"
SLOTS = "nproc_per_node"
"""torchrun's flag for the workers of a node."""
DEVICES = "gpu"
"""As a value of `SLOTS`: as many as the node has devices."""


@dataclass(frozen=True)
class Translation:
    """A launcher's flags in torchrun's words."""

    flags: Mapping[str, str]
    """With underscores; a switch is \"true\". Those that torchrun has not are left as they are."""
    variables: Mapping[str, str]
    """Which the launcher sets for the script because of them."""
    adds_folder: bool = False
    """The launcher appends the folder in which it is started to PYTHONPATH."""


@dataclass(frozen=True)
class Dialect:
    """A launcher."""

    commands: tuple[tuple[str, ...], ...]
    """The words that start it; of a program's path only the last part counts."""
    modules: tuple[str, ...]
    """As `python -m` starts it."""
    switches: frozenset[str]
    """Flags without a value, with underscores."""
    translate: Callable[[Mapping[str, str], int], Translation]
    """Of its flags, and the number of nodes of the job."""
    rank_flag: str = ""
    """By which it tells a script its local rank; empty: by none."""
    no_rank_flag: str = ""
    """Its switch against that."""
    slots_variable: str = ""
    """The variable that it takes for a `SLOTS` that it is not given; empty: none."""
