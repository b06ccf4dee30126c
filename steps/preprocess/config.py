"""The parameters of the preprocess step: those of Megatron's preprocess_data.py, and Everstep's own."""

import re
from dataclasses import dataclass
from typing import Annotated

from everstep.flags import Flag
from everstep.runtime.store import NoSuchKey, StoreError, is_s3_uri, open_store
from everstep.steps.entry import StepError, disk_error_code, require_count
from everstep.steps.model.tokenizer import TRAINED_SIZE, find_tokenizer
from everstep.steps.preprocess.masters import Kind, kind_of
from everstep.steps.preprocess.tokenizer_files import TokenizerType, gpt2_files, require_table

SMALLEST_VOCABULARY = 257
"""256 bytes and the end-of-document token."""


TYPES = tuple(kind.value for kind in TokenizerType)
PAGE = "dataset.html"
"""The page for people: an artifact of the step."""
IMPLEMENTATIONS = ("mmap", "cached", "lazy")
ON_ERROR = ("fail", "skip")


CLEANING = ("ftfy", "min_length", "max_length", "deduplicate", "validation_share")
"""Parameters that decide which documents are kept, and how they are cleaned."""


@dataclass(frozen=True)
class Config:
    """Tokenize text on Spark into Megatron indexed datasets."""

    input: Annotated[str, Flag(is_joined=True)] = ""
    """The corpus step's output; with --output-prefix: files, globs, folders, s3://, separated by commas."""
    jsonl_keys: Annotated[str, Flag(is_joined=True)] = "text"
    """Keys of the texts in each document; each becomes a dataset of its own."""
    num_docs: int = 0
    """Documents in the input, to estimate the time left; 0: unknown."""
    tokenizer_type: str = ""
    """Kind of --vocab-file: HFTokenizer, HFGPT2Tokenizer, GPT2BPETokenizer, CharLevelTokenizer, TiktokenTokenizer."""
    vocab_file: str = ""
    """tokenizer.json or Hugging Face folder; vocab.json of GPT2BPETokenizer; TiktokenTokenizer: name of an encoding, or
    its table, such as cl100k_base.tiktoken."""
    merge_file: str = ""
    """merges.txt of GPT2BPETokenizer."""
    tokenizer: str = ""
    """A tokenizer.json or a Hugging Face folder, used without special tokens; empty: a byte-level BPE is trained."""
    vocab_size: int = TRAINED_SIZE
    """Size of the vocabulary that is trained when no tokenizer is given."""
    train_tokenizer: int = 0
    """Only train a byte-level BPE with this many tokens on the input, and write it; 0: tokenize."""
    append_eod: bool = False
    """End every document with the end-of-document token."""
    eod_token: str = ""
    """The end-of-document token; empty: <|endoftext|>, else the eos_token of a Hugging Face folder."""
    ftfy: bool = False
    """Repair broken Unicode with ftfy before anything else."""
    min_length: int = 0
    """Leave out documents with fewer characters, all keys together."""
    max_length: int = 0
    """Leave out documents with more characters, all keys together; 0: no limit."""
    deduplicate: bool = False
    """Leave out documents whose texts occurred earlier in the input, found by their hash."""
    validation_share: float = 0.0
    """Share of the documents, chosen by their hash, for validation: PREFIX_validation_<key>_document, or the split of
    that name beside what the corpus has held out."""
    output_prefix: str = ""
    """Write PREFIX_<key>_document.bin and .idx, local or s3://; empty: a dataset in the store."""
    dataset_impl: str = "mmap"
    """Format of the --output-prefix files: mmap, or the older cached or lazy (the same format)."""
    workers: int = 0
    """Python processes at a time, at most one per core; 0: as --spark-master, --executors and --executor-cores say."""
    log_interval: int = 100
    """Documents between two progress lines; at most two lines a second are printed."""
    on_error: str = "fail"
    """What to do about an unreadable document: fail, or skip and count it."""
    force: bool = False
    """Overwrite what another command left under --output-prefix."""
    spark_master: str = "local[*]"
    """Where Spark runs: local[N] on N cores of this machine, local[*] on all; spark://HOST:PORT, a standalone cluster;
    k8s://, pods like this step's own. Executors without a shared folder need --input and the output in s3://."""
    executors: int = 4
    """On a cluster: the largest number of executors; they start as tasks need them."""
    executor_cores: int = 2
    """Tasks that an executor runs at a time."""
    tasks: int = 0
    """Spark tasks to cut each split into; 0: by size. The result does not depend on it."""
    store: str = "runs/store"
    """URI of the store: a directory, or s3://bucket/prefix."""
    run: str = "by-hand"
    """Name of the run this step belongs to."""
    task: str = "preprocess"
    """Name of the task in that run."""
    outputs: str = "outputs"
    """Folder for the output parameters, one file each."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, without repetitions."""
        return tuple(dict.fromkeys(filter(None, re.split(r"[,\s]+", self.jsonl_keys))))

    def check(self) -> None:
        """Raise StepError for a missing input or tokenizer, and for impossible values."""
        if self.input and self.output_prefix:
            from everstep.steps.preprocess.inputs import find_files

            find_files(self.input)
        elif self.input:
            try:
                open_store(self.input, read_only=True).get("corpus.json", 0, 0)
            except NoSuchKey:
                raise StepError(
                    f"--input {self.input}: no corpus (no corpus.json); make one with python -m everstep.steps.corpus, "
                    "or give --output-prefix to tokenize files as they are"
                ) from None
            except StoreError as error:
                raise StepError(f"--input {error}", disk_error_code(error)) from None
        self._check_tokenizer()
        self._check_values()
        self._check_master()

    def _check_master(self) -> None:
        for name in ("executors", "executor_cores"):
            require_count(f"--{name.replace('_', '-')}", getattr(self, name), 1)
        if kind_of(self.spark_master) is Kind.KUBERNETES:
            output = "output_prefix" if self.output_prefix else "store"
            for name in ("input", output):
                if getattr(self, name) and not is_s3_uri(getattr(self, name)):
                    raise StepError(
                        f"--{name.replace('_', '-')} {getattr(self, name)}: executors of --spark-master "
                        f"{self.spark_master} are pods without a shared folder; give s3://"
                    )

    def _check_tokenizer(self) -> None:
        kind = self.tokenizer_type
        if self.train_tokenizer and (self.tokenizer or kind):
            raise StepError("--train-tokenizer: trains its own; leave --tokenizer and --tokenizer-type out")
        if kind not in ("", *TYPES):
            raise StepError(f"--tokenizer-type {kind}: choose one of {', '.join(TYPES)}")
        if self.tokenizer and kind:
            raise StepError("--tokenizer and --tokenizer-type: give only one of them")
        if self.vocab_file and not kind:
            raise StepError(f"--vocab-file: give its kind with --tokenizer-type: {', '.join(TYPES)}")
        if kind not in ("", TokenizerType.CHARACTERS.value) and not self.vocab_file:
            raise StepError(f"--vocab-file is missing: {kind} needs one")
        if kind == TokenizerType.GPT2_BPE.value and not self.merge_file:
            raise StepError(f"--merge-file is missing: {kind} needs its merges.txt")
        if self.tokenizer:
            find_tokenizer(self.tokenizer, "--tokenizer")
        elif kind == TokenizerType.HF.value:
            find_tokenizer(self.vocab_file, "--vocab-file")
        elif kind in (TokenizerType.HF_GPT2.value, TokenizerType.GPT2_BPE.value):
            gpt2_files(self.vocab_file, self.merge_file)
        elif kind == TokenizerType.TIKTOKEN.value:
            require_table(self.vocab_file)
        elif not kind and self.vocab_size < SMALLEST_VOCABULARY:
            raise StepError(f"--vocab-size {self.vocab_size}: at least {SMALLEST_VOCABULARY}, one for each byte")

    def _check_values(self) -> None:
        for name in ("train_tokenizer", "vocab_size"):
            require_count(f"--{name.replace('_', '-')}", getattr(self, name), 0)
        if self.train_tokenizer and self.train_tokenizer < SMALLEST_VOCABULARY:
            raise StepError(f"--train-tokenizer {self.train_tokenizer}: at least {SMALLEST_VOCABULARY} tokens")
        for name in ("num_docs", "workers", "log_interval", "tasks", "min_length", "max_length"):
            require_count(f"--{name.replace('_', '-')}", getattr(self, name), 0)
        if 0 < self.max_length < self.min_length:
            raise StepError(f"--max-length {self.max_length}: less than --min-length {self.min_length}")
        if not 0 <= self.validation_share < 1:
            raise StepError(f"--validation-share {self.validation_share}: give a share from 0 to below 1")
        if self.dataset_impl not in IMPLEMENTATIONS:
            raise StepError(f"--dataset-impl {self.dataset_impl}: choose one of {', '.join(IMPLEMENTATIONS)}")
        if self.on_error not in ON_ERROR:
            raise StepError(f"--on-error {self.on_error}: choose one of {', '.join(ON_ERROR)}")
        if not self.keys or any("/" in key for key in self.keys):
            raise StepError(f"--jsonl-keys {self.jsonl_keys!r}: names of keys, which become part of file names")
        if not self.output_prefix and (len(self.keys) > 1 or self.dataset_impl != "mmap"):
            raise StepError("several --jsonl-keys and other --dataset-impl than mmap: only with --output-prefix")
