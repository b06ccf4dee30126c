"""The node check before training: which hosts work, alone and together."""

from typing import TYPE_CHECKING

from everstep.steps.check.config import Config
from everstep.steps.lazy import lazily

if TYPE_CHECKING:
    from everstep.steps.check.template import task

__all__ = ["Config", "task"]
__getattr__ = lazily("everstep.steps.check.template", "task")
