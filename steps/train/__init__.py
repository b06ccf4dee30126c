"""The elastic training: a master in the step's process, an agent on each node, the training script in its workers."""

from typing import TYPE_CHECKING

from everstep.steps.lazy import lazily
from everstep.steps.train.config import Config
from everstep.steps.train.memory import require_memory_for

if TYPE_CHECKING:
    from everstep.steps.train.template import task

__all__ = ["Config", "require_memory_for", "task"]
__getattr__ = lazily("everstep.steps.train.template", "task")
