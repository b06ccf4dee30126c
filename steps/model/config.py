"""The parameters of the model step."""

from dataclasses import dataclass

from everstep.steps.model import directory, smollm2
from everstep.steps.model.directory import TINY


@dataclass(frozen=True)
class Config:
    """Put the weights that training begins with into the store: converted or fetched once, found afterwards."""

    model: str = TINY
    """tiny (random weights), smollm2 (SmolLM2-135M-Instruct), or a Llama: a Hugging Face directory or s3://..."""
    tokenizer: str = ""
    """A tokenizer to use instead of the model's own."""
    store: str = "runs/store"
    """URI of the store: a directory, or s3://bucket/prefix."""
    run: str = "by-hand"
    """Name of the run this step belongs to."""
    task: str = "model"
    """Name of the task in that run."""
    outputs: str = "outputs"
    """Folder for the output parameters, one file each."""

    def check(self) -> None:
        """Raise StepError for a model that is missing or cannot be trained."""
        if self.model == smollm2.NAME:
            smollm2.source()
        elif self.model != TINY:
            directory.check(self.model)
