"""`make accept-first-hour`: what a new user tries: wanted, measured, holds or not. Words select lines.

Every line is measured by running the commands, in a folder of its own; as root, because some take another user's place.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.acceptance import Line, is_asked, judge, parse_options, prove
from benchmarks.first_hour import hard_cases, stopping, surroundings, words

MEASURED: Mapping[str, Callable[[Path], Iterator[Line]]] = {
    "stopping: Ctrl-C, SIGTERM, stop, terminate, kill; loops of one's own": stopping.measure,
    "words: mistakes, verbs, completion, report": words.measure,
    "hard cases": hard_cases.measure,
    "surroundings: a full disk, a clock that jumps, vocabularies": surroundings.measure,
}
PROVEN: Mapping[str, tuple[str, ...]] = {
    "README's loop trains to the last weight": ("tests/survival/test_stopping.py::readmes_loop",),
    "a CNN and a regression as own scripts, each killed once": ("tests/survival/test_own_scripts.py",),
    "macOS, Windows and WSL 1 say what they lack": ("tests/test_platform_support.py",),
}
"""Promise -> the tests that prove it, in the words of `acceptance.prove`."""


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """The selected lines."""
    for name, measure in MEASURED.items():
        if is_asked(name, options.words):
            with tempfile.TemporaryDirectory(prefix="everstep-first-hour-") as folder:
                yield from measure(Path(folder))
    yield from prove(PROVEN, options)


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    judge(lines(parse_options(parser, [*MEASURED, *PROVEN])))


if __name__ == "__main__":
    main()
