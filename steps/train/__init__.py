"""The elastic training: a master in the step's process, an agent on each node, the training script in its workers."""

from typing import TYPE_CHECKING

from everstep.steps.lazy import lazily
from everstep.steps.train.config import Config

if TYPE_CHECKING:
    from everstep.steps.train.template import task

__all__ = ["Config", "task"]
__getattr__ = lazily("everstep.steps.train.template", "task")
