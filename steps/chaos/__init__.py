"""One fault for a training that runs beside this step, at a random moment."""

from typing import TYPE_CHECKING

from everstep.steps.chaos.config import Config
from everstep.steps.lazy import lazily

if TYPE_CHECKING:
    from everstep.steps.chaos.template import task

__all__ = ["Config", "task"]
__getattr__ = lazily("everstep.steps.chaos.template", "task")
