"""What rounds leave in a surviving process: files that nobody closes, threads that nobody ends. One day there are too
many of them, and a new process would have had none."""

import os
import sys
import threading
from collections import Counter
from contextlib import suppress
from itertools import pairwise

_ROUNDS = 5
"""In a row, after each of which there are more. Caches, and what is made once, grow for fewer."""


class LeftBehind:
    """Counts this process's open files and Python's threads between two rounds, and says, once, what grows."""

    def __init__(self) -> None:
        self._counts = dict[str, list[Counter[str]]]()
        self._said = set[str]()

    def look(self) -> None:
        """Called after each round."""
        files = [path for name in os.listdir("/proc/self/fd") if (path := _path_of(name))]
        self._note("open files", files, "close them in a `finally`")
        threads = [f"thread {thread.name.partition('-')[0]}" for thread in threading.enumerate()]
        self._note("threads", threads, "end them in a `finally`")

    def _note(self, kind: str, names: list[str], mend: str) -> None:
        counts = self._counts.setdefault(kind, [])
        counts.append(Counter(names))
        del counts[: -_ROUNDS - 1]
        grows = len(counts) > _ROUNDS and all(less.total() < more.total() for less, more in pairwise(counts))
        if grows and kind not in self._said:
            self._said.add(kind)
            first, last = counts[0], counts[-1]
            name, count = (last - first).most_common(1)[0]
            grown = f"{first.total()} became {last.total()}, of the new ones {count} are {name}"
            print(
                f"everstep: each of the last {_ROUNDS} rounds has left more {kind} in this process: {grown}; {mend}, "
                "or make them once and `job.keep` them",
                file=sys.stderr,
            )


def _path_of(name: str) -> str:
    with suppress(OSError):  # The one that lists them.
        target = os.readlink(f"/proc/self/fd/{name}")
        return target.partition(":[")[0]  # A socket's number says nothing.
    return ""
