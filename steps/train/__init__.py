"""The elastic training: a master here, an agent on each node, and the training script in its workers."""

from typing import TYPE_CHECKING

from everstep.steps.lazy import lazily
from everstep.steps.train.config import Config

if TYPE_CHECKING:
    from everstep.steps.train.template import task

__all__ = ["Config", "task"]
__getattr__ = lazily("everstep.steps.train.template", "task")
