"""The parameters of the evaluation."""

from dataclasses import dataclass

from everstep.steps.entry import StepError
from everstep.steps.model import directory
from everstep.steps.model.directory import TINY


@dataclass(frozen=True)
class Config:
    """Measure a checkpoint of steps/train/llama.py on held-out text and export it as a Hugging Face directory."""

    checkpoint: str = ""
    """URI of a committed checkpoint, as the train step prints it."""
    validation: str = ""
    """URI of the held-out split: the dataset's with #validation."""
    model: str = TINY
    """What the training began with: tiny, a directory or the URI that the model step printed; it is measured too."""
    windows: int = 96
    """Most stretches of validation text to read, evenly spaced, each as long as a training sample."""
    sample_tokens: int = 48
    """Length of the text that the model writes as a sample; 0: none."""
    store: str = "runs/store"
    """URI of the store: a directory, or s3://bucket/prefix."""
    run: str = "by-hand"
    """Name of the run."""
    task: str = "evaluate"
    """Name of the task in that run."""
    outputs: str = "outputs"
    """Folder for perplexity, model and metrics.json."""

    def check(self) -> None:
        """Raise StepError for unusable numbers and paths."""
        if self.windows < 1:
            raise StepError(f"--windows {self.windows}: must be at least 1")
        if self.sample_tokens < 0:
            raise StepError(f"--sample-tokens {self.sample_tokens}: cannot be negative")
        if self.model != TINY:
            directory.check_finished(self.model)
