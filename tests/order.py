"""In which order tests run side by side: the long ones first, so that none of them is left alone at the end.

xdist (`--dist worksteal`) gives each worker as many tests as the others, in a row; whoever has none left takes from
the end of another's row. So each row begins with long tests. A module stays together: its tests share what they start.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar

LONG = (
    "survival", "checkpoint", "preprocess", "launch", "train", "check", "watch", "training", "docs", "evaluate",
    "store",
)  # fmt: skip
"""Folders whose tests take seconds each, the longest first: they train, or start Spark."""

Test = TypeVar("Test")


def rows(tests: Sequence[Test], file_of: Callable[[Test], str], workers: int) -> list[Test]:
    """The tests (their files as of tests/), so that each of the workers' equal rows begins with long ones."""
    modules = [(name, list(tests_of_file)) for name, tests_of_file in groupby(tests, file_of)]
    long = sorted((module for module in modules if _rank(module[0]) < len(LONG)), key=lambda module: _rank(module[0]))
    short = [test for name, tests_of_file in modules if _rank(name) == len(LONG) for test in tests_of_file]
    piles = [list(_flat(long[worker::workers])) for worker in range(workers)]
    size = max(len(tests) // workers, *(len(pile) for pile in piles), 1)
    for pile in piles:
        missing = size - len(pile)
        pile += short[:missing]
        del short[:missing]
    return [*_flat(("", pile) for pile in piles), *short]


def _rank(file: str) -> int:
    folder = file.partition("/")[0]
    return LONG.index(folder) if folder in LONG else len(LONG)


def _flat(modules: Iterable[tuple[str, list[Test]]]) -> Iterable[Test]:
    return (test for _, tests_of_file in modules for test in tests_of_file)
