"""Promises of an issue as a table: wanted, measured, holds or not. Each line is told as soon as it is known."""

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

from tests.harness import ROOT


@dataclass(frozen=True)
class Line:
    """One promise."""

    promise: str
    wanted: str
    measured: str
    holds: bool

    @property
    def verdict(self) -> str:
        """In a word."""
        return "yes" if self.holds else "NO"


def proven(promise: str, *tests: str) -> Line:
    """A promise that tests prove: they are run. One that is skipped proves nothing."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = run.stdout.strip().splitlines()[-1] if run.stdout.strip() else run.stderr.strip()[-80:]
    return Line(promise, "tests pass", last, run.returncode == 0 and "skipped" not in last)


def proven_together(
    paths: Sequence[str], promises: Mapping[str, Sequence[str]], jobs: int = 2, dist: str = "loadfile"
) -> Iterator[Line]:
    """Promises that tests below these paths prove, which run once, some at a time: they share what they start.

    A promise is proven by the tests whose `path::name` has one of its words (`FILE::PART`: both), without those that
    have a word after `!`. A test that is skipped proves nothing, nor does a word that no test has.
    """
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as folder:
        told = Path(folder, "tests.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]
        command += ["-n", str(jobs), "--dist", dist, f"--junit-xml={told}", "-o", "junit_family=xunit1"]
        subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
        cases = list(ElementTree.parse(told).iter("testcase")) if told.exists() else []
    ended = {f"{case.get('file')}::{case.get('name')}": {one.tag for one in case} for case in cases}
    for promise, words in promises.items():
        yield _proven_by(promise, words, ended)


def _proven_by(promise: str, words: Sequence[str], ended: Mapping[str, set[str]]) -> Line:
    """One promise, by how each test ended: the tags of its JUnit case."""
    without = [word[1:] for word in words if word.startswith("!")]
    found = {word: [name for name in ended if _has(name, word)] for word in words if not word.startswith("!")}
    if unknown := [word for word, names in found.items() if not names]:
        return Line(promise, "tests pass", f"no test ran of {', '.join(unknown)}", False)
    mine = {name for names in found.values() for name in names if not any(_has(name, word) for word in without)}
    wrong = sum(bool({"failure", "error", "skipped"} & ended[name]) for name in mine)
    return Line(promise, "tests pass", f"{len(mine) - wrong} of {len(mine)} pass", not wrong)


def _has(name: str, word: str) -> bool:
    return all(part in name for part in word.split("::"))


def judge(lines: Iterable[Line]) -> NoReturn:
    """Tell each, print the table, end with exit code 1 if one does not hold."""
    known = []
    for line in lines:
        print(f"{line.verdict:4}{line.promise}: {line.measured}", file=sys.stderr, flush=True)
        known.append(line)
    shown = Table("promise", "wanted", "measured", "holds")
    for line in known:
        shown.add_row(line.promise, line.wanted, line.measured, line.verdict)
    Console().print(shown)
    sys.exit(0 if all(line.holds for line in known) else 1)
