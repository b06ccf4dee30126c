"""Runs the tests as `make test` does: many at a time, and what fails in that crowd again, alone.

A test that fails in the crowd and passes alone five times shows a race: it is told at the end, written down, and must
be mended with the next change to its part. A second sighting fails the run; so does whatever fails alone, too.
"""

import argparse
import datetime
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests import parts
from tests.harness import busy

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".pytest_cache"
SEEN = ROOT / "tests" / "seen_flaking.txt"
PART_S = 120
MARKS = {"short": "not long", "long": "long", "all": ""}
"""What pytest's -m selects."""
MOST_RACES, TIMES_ALONE, TIMES_BESIDE_LOAD = 3, 5, 50


@dataclass(frozen=True)
class Failure:
    """One failure of a test in the crowd."""

    name: str
    error: str
    """Its first line."""
    output: str
    load: float
    """Processes that wanted to run, as a mean over the minute before."""


@dataclass
class Crowd:
    """A pytest plugin that notes each failure with the load at that moment."""

    failures: dict[str, Failure] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest for each phase of each test."""
        if report.failed and report.nodeid not in self.failures:
            crash = getattr(report.longrepr, "reprcrash", None)
            crash_text = (crash.message if crash else report.longreprtext).strip() or "no message"
            parts_of_output = [report.longreprtext, *(f"--- {title}\n{text}" for title, text in report.sections)]
            self.failures[report.nodeid] = Failure(
                report.nodeid, crash_text.splitlines()[0], "\n".join(parts_of_output), os.getloadavg()[0]
            )


@dataclass(frozen=True)
class Selection:
    """What to run, and how."""

    paths: Sequence[str] = ()
    """None: all tests."""
    which: str = "short"
    """A key of MARKS."""
    jobs: int = 4
    """Tests at a time; 0: one after the other in this process."""
    profile: str = "dev"
    seed: int = 0

    @property
    def properties(self) -> list[str]:
        """Arguments of pytest for how many examples a property has, and which."""
        return [f"--hypothesis-profile={self.profile}", f"--hypothesis-seed={self.seed}"]


def run(selection: Selection, cache: Path = CACHE, flaky_list: Path = SEEN) -> int:
    """The tests, many at a time; up to three that fail again, alone. Returns the exit code."""
    print(f"seed {selection.seed} (again: make test SEED={selection.seed}), profile {selection.profile}", flush=True)
    crowd, report_file = Crowd(), cache / ("long.xml" if selection.which == "long" else "tests.xml")
    pytest_arguments = [
        "-rs",
        "-m",
        MARKS[selection.which],
        "-n",
        str(selection.jobs),
        "--dist",
        "worksteal",
    ]
    pytest_arguments += [f"--junit-xml={report_file}", "-o", "junit_family=xunit1"]
    code = pytest.main([*pytest_arguments, *selection.properties, *selection.paths], plugins=[crowd])
    if code != pytest.ExitCode.TESTS_FAILED:
        return int(code)
    if len(crowd.failures) > MOST_RACES:
        print(f"{len(crowd.failures)} tests failed: too many for races (at most {MOST_RACES})")
        return 1
    again = [failure for failure in crowd.failures.values() if not _passes_alone(failure.name, selection)]
    for failure in again:
        print(f"FAILED alone, too: {failure.name} {failure.error}")
    return 1 if again else tell_races(list(crowd.failures.values()), selection.seed, cache / "flaky", flaky_list)


def _passes_alone(name: str, selection: Selection) -> bool:
    for time in range(1, TIMES_ALONE + 1):
        completed = _alone([*selection.properties, name])
        print(
            f"alone, {time} of {TIMES_ALONE}: {name}: {'passed' if completed.returncode == 0 else 'failed'}", flush=True
        )
        if completed.returncode:
            print(completed.stdout)
            return False
    return True


def _alone(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


def tell_races(races: Sequence[Failure], seed: int, sightings: Path, flaky_list: Path) -> int:
    """Write down tests that failed in the crowd only. Returns the exit code: 1 if one of them was seen before."""
    before = seen_names(flaky_list)
    sightings.mkdir(parents=True, exist_ok=True)
    for race in races:
        path = sightings / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', race.name)[-150:]}.txt"
        path.write_text(f"{race.name}\nseed {seed}\nload {race.load:.1f}\n\n{race.output}\n")
        print(f"FLAKY {race.name} {race.error}")
        if race.name not in before:
            with flaky_list.open("a") as file:
                file.write(f"{datetime.date.today()}\t{race.name}\tcause not found: {_kind(race.error)}\n")
    if again := [race.name for race in races if race.name in before]:
        print(f"seen flaking before, mend first: {', '.join(again)} ({flaky_list.name})")
        return 1
    if races:
        print(f"written to {flaky_list.name}: commit that line with its cause, or mend the test and take it out")
    return 0


def _kind(error: str) -> str:
    """The error's type: what follows it may hold paths of the machine that saw it."""
    return error.partition(":")[0].partition(" ")[0]


def seen_names(flaky_list: Path) -> set[str]:
    """Tests that flaked and are not mended. A line: date, name, cause, with tabs between them."""
    return {line.split("\t")[1] for line in flaky_list.read_text().splitlines() if "\t" in line}


def repeat(name: str, times: int, selection: Selection) -> int:
    """One test (a path, PATH::NAME, or words as of pytest's -k) beside load. Returns the exit code."""
    which = [name] if "::" in name or name.endswith(".py") else _tests_of(name)
    failed = 0
    with busy(soaking=True):
        for time in range(1, times + 1):
            now = replace(selection, seed=random.randrange(2**32))
            completed = _alone([*now.properties, *which])
            if completed.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                print(f"{completed.stdout}\nno test ran: is {name!r} one?", file=sys.stderr)
                return 2
            failed += completed.returncode != 0
            print(f"{time} of {times}: {failed} failed", flush=True)
            if completed.returncode:
                print(f"seed {now.seed}\n{completed.stdout}", flush=True)
    return 1 if failed else 0


def _tests_of(words: str) -> list[str]:
    """Collected once: that imports all tests."""
    listing = _alone(["--collect-only", "-q", "-k", words]).stdout
    return [line for line in listing.splitlines() if "::" in line] or [words]


def part_of(part: str, jobs: int) -> list[str]:
    """Arguments of pytest for the tests of that part, as far as they take about two minutes. Raises NoPartError."""
    left_out = parts.too_long(part, CACHE / "tests.xml", PART_S * jobs)
    if left_out:
        print(f"left to `make test`: {len(left_out)} tests of other parts, {sum(left_out.values()) / jobs:.0f} s more")
    return [*parts.paths_of(part), *(f"--deselect={name}" for name in left_out)]


def main() -> int:
    """The command line, as the Makefile spells it."""
    parser = argparse.ArgumentParser(prog="python -m tests.suite", description=__doc__)
    parser.add_argument("paths", nargs="*", help="files, folders or PATH::NAME; none: all tests")
    parser.add_argument("--part", default="", help="a folder of tests: its tests, and those of what is built on it")
    parser.add_argument("--which", default="short", choices=MARKS, help="long: only the tests marked `long`")
    parser.add_argument("--jobs", type=int, default=4, help="tests at a time (they mostly wait)")
    parser.add_argument("--profile", default="dev", choices=["dev", "ci", "long"], help="examples per property")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of all properties")
    parser.add_argument("--repeat", default="", metavar="NAME", help=f"one test, {TIMES_BESIDE_LOAD} times beside load")
    parser.add_argument("--times", type=int, default=TIMES_BESIDE_LOAD)
    options = parser.parse_args()
    try:
        paths = part_of(options.part, options.jobs) if options.part else options.paths
        if options.which == "long" and not paths and not options.repeat:
            paths = parts.files_with_long()
    except parts.NoPartError as why:
        print(why, file=sys.stderr)
        return 2
    selection = Selection(paths, options.which, options.jobs, options.profile, options.seed)
    return repeat(options.repeat, options.times, selection) if options.repeat else run(selection)


if __name__ == "__main__":
    sys.exit(main())
