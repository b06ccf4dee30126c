"""What training begins with: `tiny`, SmolLM2 from its PyPI package, a model in S3, or a directory."""

from typing import TYPE_CHECKING

from everstep.steps.lazy import lazily
from everstep.steps.model.config import Config

if TYPE_CHECKING:
    from everstep.steps.model.template import task

__all__ = ["Config", "task"]
__getattr__ = lazily("everstep.steps.model.template", "task")
