"""The parameters of the evaluation."""

import json
from dataclasses import dataclass
from typing import Any

from everstep.steps.entry import StepError, require_count, require_script
from everstep.steps.model import directory
from everstep.steps.model.directory import TINY


@dataclass(frozen=True)
class Config:
    """Measure a checkpoint of a Llama on held-out text and export it for Hugging Face, or run a script of yours."""

    checkpoint: str = ""
    """URI of a committed checkpoint, as the train step prints it."""
    trained_by: str = ""
    """The script that trained the checkpoint; empty: steps/train/llama.py. Another script's checkpoint is measured only
    if it is of a Llama."""
    script: str = ""
    """Your own evaluation script instead; it gets EVERSTEP_CHECKPOINT, EVERSTEP_VALIDATION, EVERSTEP_MODEL and
    EVERSTEP_RESULTS (docs/scripts.md)."""
    results: str = "{}"
    """JSON: what the training named with `everstep.results`, as the train step prints it."""
    validation: str = ""
    """URI of the held-out split: the dataset's with #validation."""
    model: str = TINY
    """The model that training began with: tiny, a directory or the URI that the model step printed. It is measured
    too."""
    windows: int = 96
    """Largest number of validation windows to read, evenly spaced, each as long as a training sample."""
    sample_tokens: int = 48
    """Length of the text that the model writes as a sample; 0: none."""
    store: str = "runs/store"
    """URI of the store: a directory, or s3://bucket/prefix."""
    run: str = "by-hand"
    """Name of the run."""
    task: str = "evaluate"
    """Name of the task in that run."""
    outputs: str = "outputs"
    """Folder for perplexity, model, results and metrics.json."""

    def check(self) -> None:
        """Raise StepError for unusable numbers and paths."""
        require_count("--windows", self.windows, 1)
        require_count("--sample-tokens", self.sample_tokens, 0)
        require_script("--script", self.script)
        self.training_results()
        if self.model != TINY:
            directory.check_finished(self.model)

    def training_results(self) -> dict[str, Any]:
        """What the training named. Raises StepError."""
        try:
            results = json.loads(self.results or "{}")
        except ValueError:
            results = None
        if not isinstance(results, dict):
            raise StepError(f"--results {self.results[:80]}: not a JSON object of names and values")
        return results
