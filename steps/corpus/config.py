"""The parameters of the corpus step."""

from dataclasses import dataclass

from everstep.steps.entry import StepError

SINGLE = (
    "a single document, of which none can be held out for the evaluation; cut it into several, such as the lines of a "
    ".jsonl file (the corpus step by itself holds out none with --validation-share 0)"
)


@dataclass(frozen=True)
class Config:
    """Collect text, drop exact duplicates, hold out a share, and write it as lm-dataformat archives."""

    source: str = ""
    """Comma separated files, globs and folders (.jsonl, .jsonl.zst, .jsonl.gz, .txt, .parquet, .zip, lm-dataformat
    archives), local or s3://; empty: this Python's standard library and its documentation."""
    text_key: str = "text"
    """Key of the text in each line of .jsonl files."""
    validation_share: float = 0.02
    """Share of the documents held out for evaluation, chosen by their hash; 0 holds out none."""
    store: str = "runs/store"
    """URI of the store: a directory, or s3://bucket/prefix."""
    run: str = "by-hand"
    """Name of the run this step belongs to."""
    task: str = "corpus"
    """Name of the task in that run."""
    outputs: str = "outputs"
    """Folder for the output parameters, one file each."""

    def check(self) -> None:
        """Raise StepError for impossible numbers and missing input."""
        if not 0 <= self.validation_share < 1:
            raise StepError(f"--validation-share {self.validation_share}: give a share from 0 to below 1")
        if not self.text_key:
            raise StepError("--text-key is empty: give the key of the text in each line, such as text")
        if self.source:
            from everstep.steps.corpus.sources import find, require_text

            names = find(self.source)
            require_text(names, self.text_key)
            if self.validation_share and len(names) == 1 and names[0].endswith(".txt"):
                raise StepError(f"--source {self.source}: {SINGLE}")
