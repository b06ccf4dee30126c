"""What the training achieved: perplexity before and after, a sample of text, the Hugging Face export."""

from typing import TYPE_CHECKING

from everstep.steps.evaluate.config import Config
from everstep.steps.lazy import lazily

if TYPE_CHECKING:
    from everstep.steps.evaluate.template import task

__all__ = ["Config", "task"]
__getattr__ = lazily("everstep.steps.evaluate.template", "task")
