"""The executor's parameters, expressions, clocks and sandbox.

`MEASURED`: the fuzzer in processes of its own; `python -m benchmarks.hardening.engine --cases 1000` runs some of it.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from benchmarks.acceptance import Line, judge
from benchmarks.memory import peak_bytes
from tests.workflow import fuzz

CASES, CHUNK = 100_000, 500
"""The number of cases, and of cases per process."""
FIRST = 1_000_000
"""The first seed; the tests use others."""
PROCESSES = 2
MEMORY_BYTES = 1 << 30
NICE = 10


class Chunk(NamedTuple):
    """The results of some cases."""

    ends: Counter[str]
    findings: list[str]
    peak_bytes: int


def run_chunk(first: int, count: int) -> Chunk:
    """Run those cases in this process."""
    ends, findings = Counter[str](), list[str]()
    for seed in range(first, first + count):
        try:
            ends[fuzz.run_limited(seed)] += 1
        except fuzz.FindingError as error:
            findings.append(str(error))
    return Chunk(ends, findings, peak_bytes())


def run_fuzz(options: argparse.Namespace) -> Iterator[Line]:
    """Random manifests, parameters and outputs; a case that hangs or exceeds its memory is a finding."""
    cases = getattr(options, "cases", CASES)
    context = get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, context, initializer=os.nice, initargs=(NICE,)) as pool:
        firsts = range(FIRST, FIRST + cases, CHUNK)
        counts = [min(CHUNK, FIRST + cases - first) for first in firsts]
        chunks = list(pool.map(run_chunk, firsts, counts))
    ends = sum((chunk.ends for chunk in chunks), Counter[str]())
    findings = [finding for chunk in chunks for finding in chunk.findings]
    peak = max(chunk.peak_bytes for chunk in chunks)
    measured_text = f"{sum(ends.values()) + len(findings):,} cases, {len(findings)} findings, {peak >> 20} MiB at most"
    for finding in findings:
        print(finding, file=sys.stderr)
    yield Line(
        PROMISE, f"no traceback, none over {fuzz.LIMIT_S:.0f} s, no process over {MEMORY_BYTES >> 20} MiB",
        measured_text, not findings and peak < MEMORY_BYTES,
    )  # fmt: skip


PROMISE = f"executor: {CASES:,} hostile manifests, parameters and outputs"
MEASURED: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {PROMISE: run_fuzz}

HOSTILE, CLOCK = "tests/workflow/test_hostile.py", "tests/workflow/test_clock.py"
LOOPS, OUTPUTS = "tests/workflow/test_hostile_loops.py", "tests/workflow/test_hostile_outputs.py"
EXPRESSIONS = "tests/workflow/test_hostile_expressions.py"
RUNNER, ENGINE = "tests/workflow/test_runner.py", "tests/workflow/test_engine.py"
SANDBOX, TEXTS = "tests/workflow/test_sandbox.py", "tests/text/test_ranges.py"
PROVEN: dict[str, tuple[str, ...]] = {
    "executor: withParam of deep JSON and of numbers that no float holds, in Argo's words": (
        f"{LOOPS}::deep_json", f"{LOOPS}::thousand_levels", f"{LOOPS}::no_float", f"{LOOPS}::half_a_character",
        "tests/workflow/test_golden.py::withparam",
    ),
    "executor: withSequence of 10^9 and 10^6 items are refused at once": (
        f"{LOOPS}::more_items", f"{LOOPS}::sequence_without_end", f"{LOOPS}::loops_in_loops",
        f"{LOOPS}::format_writes",
    ),
    "executor: huge powers, shifts, repeats and deep parentheses fail their node": (
        f"{EXPRESSIONS}::fill_the_launcher", f"{EXPRESSIONS}::arithmetic_and_patterns",
        f"{EXPRESSIONS}::attacks_arguments",
        f"{EXPRESSIONS}::a_when_", f"{EXPRESSIONS}::tags_",
    ),
    "executor: regular expressions are RE2's": (f"{EXPRESSIONS}::go_takes", f"{EXPRESSIONS}::arithmetic_and_patterns"),
    "executor: YAML aliases and 100,000 brackets are refused in one line": (
        f"{HOSTILE}::yaml_that", f"{HOSTILE}::hundred_thousand_brackets",
    ),
    "executor: an output that is no small file, a zero byte, a deadline that is no number: the node fails": (
        f"{OUTPUTS}::no_small_file", f"{OUTPUTS}::from_its_end", f"{HOSTILE}::zero_byte", f"{HOSTILE}::deadlines",
    ),
    "executor: the fuzzer's first cases, and that it finds what is planted": (f"{HOSTILE}::fuzzer",),
    "executor: every duration by the monotonic clock, after a resume by what was told": (CLOCK,),
    "executor: a stop, a deadline and an end are seen while very many pods are started, at most 110 run at once": (
        f"{RUNNER}::before_all", f"{RUNNER}::at_once", f"{ENGINE}::began_after", f"{ENGINE}::never_begins",
    ),
    "executor: ordinary loops of any length that a run may have are not refused; the same log costs the same": (
        f"{LOOPS}::ordinary", f"{EXPRESSIONS}::read_before", f"{LOOPS}::side_by_side", f"{LOOPS}::wait_for_a_limit",
    ),
    "executor: of what a pod prints 256 KiB are kept": (f"{OUTPUTS}::the_end_is_kept", f"{OUTPUTS}::from_its_end"),
    "executor: --sandbox": (SANDBOX,),
    "texts: a line of hundreds of megabytes is a bad document": (f"{TEXTS}::hundreds_of", f"{TEXTS}::as_long_as"),
}  # fmt: skip
"""Promise -> the tests that prove it, in the words of `acceptance.proven`."""


def main() -> None:
    """Measure some cases, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES)
    judge(run_fuzz(parser.parse_args()))


if __name__ == "__main__":
    main()
