"""The node check before training: which hosts work, alone and together."""

from typing import TYPE_CHECKING

from steps.check.config import Config
from steps.lazy import lazily

if TYPE_CHECKING:
    from steps.check.template import task

__all__ = ["Config", "task"]
__getattr__ = lazily("steps.check.template", "task")
