"""The parameters of the model step."""

from dataclasses import dataclass

from everstep.steps.entry import StepError, require_count
from everstep.steps.model import directory, smollm2
from everstep.steps.model.directory import TINY
from everstep.steps.model.tokenizer import TRAINED_SIZE, find_tokenizer, vocabulary_size


@dataclass(frozen=True)
class Config:
    """Put the weights that training begins with into the store: converted or fetched once, found afterwards."""

    model: str = TINY
    """tiny (random weights), smollm2 (SmolLM2-135M-Instruct), or a Llama: a Hugging Face directory or s3://..."""
    tokenizer: str = ""
    """A tokenizer to use instead of the model's own."""
    sequence_length: int = 1
    """Tokens per sample of the training; a model that reads fewer is refused."""
    store: str = "runs/store"
    """URI of the store: a directory, or s3://bucket/prefix."""
    run: str = "by-hand"
    """Name of the run this step belongs to."""
    task: str = "model"
    """Name of the task in that run."""
    outputs: str = "outputs"
    """Folder for the output parameters, one file each."""

    def check(self) -> None:
        """Raise StepError for a model that is missing or cannot be trained, or whose tokens do not fit it."""
        require_count("--sequence-length", self.sequence_length, 1)
        if self.model == smollm2.NAME:
            smollm2.source()
            if self.sequence_length > smollm2.LONGEST:
                raise directory.too_long(self.sequence_length, self.model, smollm2.LONGEST)
            self._check_tokenizer(smollm2.VOCABULARY)
        elif self.model != TINY:
            self._check_tokenizer(int(directory.check(self.model, self.sequence_length).get("vocab_size", 0)))

    def _check_tokenizer(self, model_vocabulary: int) -> None:
        """Raise StepError if the text would be tokenized into more tokens than the model knows."""
        if self.tokenizer:
            what = f"--tokenizer {self.tokenizer}"
            size = vocabulary_size(find_tokenizer(self.tokenizer, "--tokenizer").read_bytes())
        elif self.model == smollm2.NAME:
            return  # Its own.
        elif (own := directory.tokenizer_of(self.model)) is not None:
            what = f"--model {self.model}: its tokenizer.json"
            try:
                size = vocabulary_size(own)
            except ValueError as error:
                raise StepError(f"{what}: not a tokenizer.json ({error}); fetch it again") from None
        else:
            what = f"--model {self.model}: no tokenizer.json in it, and the one trained on your text"
            size = TRAINED_SIZE
        if size > model_vocabulary:
            raise StepError(
                f"{what} has {size} tokens, the model knows {model_vocabulary}; give the model's own --tokenizer"
            )
