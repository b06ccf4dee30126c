"""What the training was worth: perplexity beside the untrained model's, a sample of text, the Hugging Face export."""

from steps.evaluate.config import Config
from steps.evaluate.template import task

__all__ = ["Config", "task"]
