"""The parameters of the preprocess step."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from runtime.store import NoSuchKey, local_folder, open_store
from steps.entry import StepError

SMALLEST_VOCABULARY = 257
"""256 bytes and the token that ends a document."""


@dataclass(frozen=True)
class Config:
    """Tokenize a corpus on Spark into a Megatron indexed dataset."""

    input: str = ""
    """The corpus: the URI that steps.corpus told."""
    tokenizer: str = ""
    """A tokenizer.json or a Hugging Face directory; empty: a byte-level BPE is trained on the corpus."""
    vocab_size: int = 8192
    """Size of the vocabulary that is trained when no --tokenizer is given."""
    append_eod: bool = True
    """End every document with the end-of-document token."""
    eod_token: str = ""
    """The end-of-document token; empty: <|endoftext|>, else the eos_token of a Hugging Face directory."""
    spark_master: str = "local[*]"
    """Where Spark runs: local[N] on N cores of this machine, local[*] on all."""
    tasks: int = 0
    """Spark tasks to cut the training text into; 0: by size. The result does not depend on it."""
    store: str = "runs/store"
    """URI of the store: a directory, or s3://bucket/prefix."""
    run: str = "by-hand"
    """Name of the run this step belongs to."""
    task: str = "preprocess"
    """Name of the task in that run."""
    outputs: str = "outputs"
    """Folder for the output parameters, one file each."""

    @cached_property
    def corpus(self) -> Path:
        """The corpus as a folder of this machine; from S3 it is fetched."""
        return local_folder(self.input, "corpus.json")

    def check(self) -> None:
        """Raise StepError for a corpus or tokenizer that is not there and numbers that cannot be."""
        try:
            if self.input:
                open_store(self.input, read_only=True).get("corpus.json", 0, 0)
        except NoSuchKey:
            mend = "make one with python -m steps.corpus"
            raise StepError(f"--input {self.input}: no corpus (no corpus.json); {mend}") from None
        if not self.tokenizer and self.vocab_size < SMALLEST_VOCABULARY:
            raise StepError(f"--vocab-size {self.vocab_size}: at least {SMALLEST_VOCABULARY}, one for each byte")
        if self.tokenizer:
            from steps.preprocess.vocabulary import tokenizer_file

            tokenizer_file(self.tokenizer)
        if not re.fullmatch(r"local(\[([1-9]\d*|\*)\])?", self.spark_master):
            raise StepError(f"--spark-master {self.spark_master}: only local, local[N] and local[*] are supported yet")
        if self.tasks < 0:
            raise StepError(f"--tasks {self.tasks}: 0 or more")
