"""`make accept-hardening`: nothing gets stuck, nothing escapes, nothing is left: wanted, measured, holds or not.

The tests that each part names prove most promises; what takes minutes is measured here. Words on the command line
select lines.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from benchmarks.acceptance import Line, is_asked, judge, parse_options, prove
from benchmarks.hardening import brain, damage, engine, files, journal, sockets, supply

PARTS = (brain, damage, journal, sockets, files, engine, supply)
PROVEN: Mapping[str, tuple[str, ...]] = dict(chain.from_iterable(part.PROVEN.items() for part in PARTS))
"""Promise -> the tests that prove it, in the words of `acceptance.proven`."""
MEASURED: Mapping[str, Callable[[argparse.Namespace], Iterator[Line]]] = dict(
    chain.from_iterable(part.MEASURED.items() for part in PARTS)
)
"""Promise -> its measurement, and the other promises that the same run covers."""


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """The selected lines: measurements first, with the machine to themselves."""
    measures = dict.fromkeys(measure for promise, measure in MEASURED.items() if is_asked(promise, options.words))
    for measure in measures:
        yield from (line for line in measure(options) if is_asked(line.promise, options.words))
    yield from prove(PROVEN, options)


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    judge(lines(parse_options(parser, [*MEASURED, *PROVEN])))


if __name__ == "__main__":
    main()
