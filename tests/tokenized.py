"""What makes the run of a pipeline small: a corpus, a model, and stores that have a corpus with its tokens already.

A pipeline finds them there and starts no Spark.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import ROOT
from tests.once import made_once

SMALL_MODEL = ("--script", str(ROOT / "tests/survival/small_script.py"), "--script-args=--pause 0.1")
"""Flags of a pipeline that trains it, and mostly waits meanwhile."""


def small_corpus(factory: pytest.TempPathFactory) -> str:
    """Some texts of this project's own, as `--corpus` names them."""

    def make(folder: Path) -> None:
        for path in (ROOT / "runtime" / "job").glob("*.py"):
            (folder / f"{path.stem}.txt").write_text(path.read_text())

    return f"{made_once(factory, 'texts', make)}/*.txt"


def fill_store(factory: pytest.TempPathFactory, name: str, corpus: str, store: Path) -> None:
    """Put that corpus and its tokens, which are made once a session under this name, into a new store."""

    def make(folder: Path) -> None:
        flags = [f"--source={corpus}"]
        for step in ("corpus", "preprocess"):
            command = [sys.executable, "-m", f"everstep.steps.{step}", f"--store={folder}/store", *flags]
            subprocess.run([*command, f"--outputs={folder}/{step}"], check=True)
            flags = [f"--input={(folder / step / 'uri').read_text()}", "--append-eod=True"]
        shutil.rmtree(folder / "store" / "runs")

    shutil.copytree(made_once(factory, f"tokenized-{name}", make) / "store", store)
