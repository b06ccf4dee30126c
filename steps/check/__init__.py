"""The node check before training: which hosts work, alone and together."""

from steps.check.config import Config
from steps.check.template import task

__all__ = ["Config", "task"]
