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


def proven_together(paths: Sequence[str], promises: Mapping[str, Sequence[str]], only: bool = False) -> Iterator[Line]:
    """Promises that tests below these paths prove, which run once, two files at a time: they share what they start.

    A promise is proven by the tests whose `path::name` has one of its words; of words with a space between them it has
    all. One that is skipped proves nothing. `only` these tests are run, not all below the paths.
    """
    if not promises:
        return
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as folder:
        told = Path(folder, "tests.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]
        command += ["-n", "2", "--dist", "loadfile", f"--junit-xml={told}", "-o", "junit_family=xunit1"]
        if only:
            each = sorted({word for words in promises.values() for word in words})
            names = [" and ".join(part.rpartition("/")[2] for part in word.split()) for word in each]
            command += ["-k", " or ".join(f"({name})" for name in names)]
        subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        cases = list(ElementTree.parse(told).iter("testcase")) if told.exists() else []
    ended = {f"{case.get('file')}::{case.get('name')}": [one.tag for one in case] for case in cases}
    for promise, words in promises.items():
        mine = [
            tags for name, tags in ended.items() if any(all(part in name for part in word.split()) for word in words)
        ]
        wrong = sum(bool({"failure", "error", "skipped"} & set(tags)) for tags in mine)
        measured = f"{len(mine) - wrong} of {len(mine)} pass" if mine else "no test ran"
        yield Line(promise, "tests pass", measured, bool(mine) and not wrong)


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
