"""The one place that wraps torch's making of process groups. Imports no torch: a caller hands its module in."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from types import ModuleType
from typing import Any

_HELPER = "_new_process_group_helper"
"""torch.distributed makes every group in this function, from 1.8 to 2.15."""


def surround_group_making(distributed_c10d: ModuleType, block: Callable[[], AbstractContextManager[Any]]) -> None:
    """From now on, torch makes each group inside a `block()` of its own. Several callers' blocks nest.

    Raises AttributeError if this torch makes groups elsewhere.
    """
    make: Callable[..., Any] = getattr(distributed_c10d, _HELPER)

    @wraps(make)
    def make_in_block(*arguments: Any, **keywords: Any) -> Any:
        with block():
            return make(*arguments, **keywords)

    setattr(distributed_c10d, _HELPER, make_in_block)
