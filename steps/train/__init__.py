"""The elastic training: a master here, an agent on each node, and the training script in its workers."""

from steps.train.config import Config
from steps.train.template import task

__all__ = ["Config", "task"]
