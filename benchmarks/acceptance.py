"""Promises as a table: wanted, measured, holds or not. Each line is printed as soon as it is known."""

import argparse
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

Cases = Mapping[str, ElementTree.Element]
"""Finished tests: `path::name` -> JUnit case."""


@dataclass(frozen=True)
class Limit:
    """What tests measure of which they assert nothing: the longest time is held against a limit here."""

    name: str
    """By which tests record the seconds (pytest's `record_property`)."""
    seconds: float
    words: str
    """What the seconds are, for the table: `named {} s after`."""


@dataclass(frozen=True)
class Line:
    """One promise."""

    promise: str
    wanted: str
    measured: str
    holds: bool | None
    """None: it cannot be measured here, which `measured` says."""

    @property
    def verdict(self) -> str:
        """The verdict in one word."""
        return "-" if self.holds is None else "yes" if self.holds else "NO"


def prove(
    promises: Mapping[str, Sequence[str]],
    options: argparse.Namespace,
    paths: Sequence[str] = (),
    limit: Limit | None = None,
) -> Iterator[Line]:
    """The promises that tests prove, if the options of `parse_options` select them; the tests run once, some at a time.

    A promise is proven by the tests whose `path::name` contains one of its words (`FILE::PART`: both), except those
    that contain a word after `!`. A skipped test proves nothing, and neither does a word that no test contains.
    `paths`: where the tests are, if words do not begin with it. `limit`: of what some tests measure.
    """
    requested = {promise: words for promise, words in promises.items() if is_asked(promise, options.words)}
    if not requested:
        return
    cases = (
        read_all(options.tests)
        if options.tests
        else run_tests(_pytest_arguments(requested, options, paths), options.jobs)
    )
    for promise, words in requested.items():
        yield line_of(promise, words, cases, limit)


def run_tests(arguments: Sequence[str], jobs: int) -> Cases:
    """Run pytest with `jobs` tests at a time; returns `path::name` of each test -> its JUnit case."""
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as folder:
        report = Path(folder, "tests.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        command += ["-n", str(jobs), "--dist", "worksteal", f"--junit-xml={report}", "-o", "junit_family=xunit1"]
        subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
        return _read(report) if report.exists() else {}


def read_all(files: Sequence[Path]) -> Cases:
    """The cases of these JUnit files, by `path::name`."""
    return {name: case for path in files for name, case in _read(path).items()}


def _read(report: Path) -> Cases:
    cases = ElementTree.parse(report).iter("testcase")
    return {f"{case.get('file')}::{case.get('name')}": case for case in cases}


def has_passed(case: ElementTree.Element) -> bool:
    """Did the test run and pass?"""
    return not {"failure", "error", "skipped"} & {element.tag for element in case}


def _pytest_arguments(
    requested: Mapping[str, Sequence[str]], options: argparse.Namespace, paths: Sequence[str]
) -> list[str]:
    """The arguments that make pytest select these tests."""
    each = [word for words in requested.values() for word in words if not word.startswith("!")]
    inner = list(paths) or list(dict.fromkeys(word.partition("::")[0] for word in each))
    outer = [path for path in inner if not any(path != parent and path.startswith(parent) for parent in inner)]
    if options.words:  # Only the needed tests of these files; -k matches file names, too.
        parts = sorted({Path(word.rpartition("::")[2]).stem for word in each})
        outer += ["-k", " or ".join(f"({' and '.join(part.split())})" for part in parts)]
    return outer


def line_of(promise: str, words: Sequence[str], cases: Cases, limit: Limit | None = None) -> Line:
    """One promise, by the tests that contain its words, and by what they measure (see `prove`)."""
    without = [word[1:] for word in words if word.startswith("!")]
    names_by_word = {word: [name for name in cases if _has(name, word)] for word in words if not word.startswith("!")}
    if unknown := [word for word, names in names_by_word.items() if not names]:
        return Line(promise, "tests pass", f"no test ran of {', '.join(unknown)}", False)
    mine = {name for names in names_by_word.values() for name in names if not any(_has(name, word) for word in without)}
    well = sum(has_passed(cases[name]) for name in mine)
    line = Line(promise, "tests pass", f"{well} of {len(mine)} pass", well == len(mine))
    measured = [seconds for name in mine for seconds in _seconds(cases[name], limit)] if limit else []
    if not limit or not measured:
        return line
    longest = max(measured)
    return Line(
        promise,
        f"tests pass, <= {limit.seconds:g} s",
        f"{line.measured}, {limit.words.format(f'{longest:.1f}')}",
        line.holds and longest <= limit.seconds,
    )


def _seconds(case: ElementTree.Element, limit: Limit) -> Iterator[float]:
    for entry in case.iter("property"):
        if entry.get("name") == limit.name:
            yield float(entry.get("value", ""))


def _has(name: str, word: str) -> bool:
    return all(part in name for part in word.split("::"))


def is_asked(promise: str, words: Sequence[str]) -> bool:
    """Does the promise contain one of these words? Without words every promise is selected."""
    return not words or any(word.lower() in promise.lower() for word in words)


def parse_options(parser: argparse.ArgumentParser, promises_known: Sequence[str]) -> argparse.Namespace:
    """The command line, with words that select lines. An unknown word prints all lines: exit code 2."""
    parser.add_argument("words", nargs="*", metavar="WORD", help="only lines that have one of these words")
    parser.add_argument("--jobs", type=int, default=4, help="tests at a time (they mostly wait)")
    parser.add_argument(
        "--tests",
        type=Path,
        metavar="FILE",
        action="append",
        help="the tests have run: how they ended, as `make test` and `make test-long` write it; may be given twice",
    )
    options = parser.parse_args()
    if unknown := [word for word in options.words if not any(is_asked(promise, [word]) for promise in promises_known)]:
        promises = "\n  ".join(promises_known)
        print(f"no line has {', '.join(unknown)}; the lines:\n  {promises}", file=sys.stderr)
        sys.exit(2)
    return options


def judge(lines: Iterable[Line]) -> NoReturn:
    """Print each line, then the table; exit code 1 if a line does not hold."""
    lines_so_far = []
    for line in lines:
        print(f"{line.verdict:4}{line.promise}: {line.measured}", file=sys.stderr, flush=True)
        lines_so_far.append(line)
    result_table = Table("promise", "wanted", "measured", "holds")
    for line in lines_so_far:
        result_table.add_row(line.promise, line.wanted, line.measured, line.verdict)
    Console().print(result_table)
    sys.exit(1 if any(line.holds is False for line in lines_so_far) else 0)
