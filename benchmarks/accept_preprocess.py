"""`make accept-preprocess`: every promise of the tokenization: wanted, measured, holds or not. Exit code 1 if not all.

Speed and memory are measured here beside the peers of `benchmarks.preprocess`; the rest is proven by the tests named.
"""

import argparse
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.acceptance import Line, judge, proven
from benchmarks.preprocess import Figure, Input, measured, ours, prepared, same_bytes

TESTS = "tests/preprocess"
MEMORY = 1_500_000_000


def speed(given: Input, best: dict[str, Figure], folder: Path) -> Iterator[Line]:
    """Beside the limit and megatron-core's builder."""
    mine, megabytes = best["ours"], given.bytes / 1e6
    share = best["limit"].seconds / mine.job_seconds
    told = (
        f"{share:.2f} ({megabytes / mine.job_seconds:.1f} MB/s, {mine.tokens / 1e6 / mine.job_seconds:.2f} M tokens/s)"
    )
    yield Line("Spark's job / the tokenizer's own limit", ">= 0.9", told, share >= 0.9)
    if "megatron" in best:
        times = best["megatron"].seconds / mine.seconds
        yield Line("whole command, times megatron-core's builder", ">= 3", f"{times:.1f}", times >= 3)
        same = same_bytes(folder)
        yield Line("bytes equal to megatron-core's builder", "equal", "equal" if same else "different", same)
    else:
        yield Line("whole command, times megatron-core's builder", ">= 3", "megatron-core is not installed", False)
    if "datatrove" in best:
        times = best["datatrove"].seconds / mine.seconds
        yield Line("whole command, times datatrove", "faster", f"{times:.1f}", times > 1)
    yield Line(
        f"peak memory of everything, {given.cores} cores", "<= 1.5 GB", f"{mine.peak_bytes / 1e9:.2f} GB",
        mine.peak_bytes <= MEMORY,
    )  # fmt: skip


def scaling(folder: Path, small: tuple[Input, Figure], factor: int) -> Iterator[Line]:
    """So many times the input."""
    given, before = small
    many = folder / "many.jsonl"
    with many.open("wb") as out:
        for _ in range(factor):
            out.write(given.text.read_bytes())
    after = ours(Input(many, given.bytes * factor, given.tokenizer, given.cores), folder)
    times = after.job_seconds / before.job_seconds
    yield Line(
        f"{factor} x the input: time of the job", f"<= {factor * 1.1:.1f} x", f"{times:.1f} x", times <= factor * 1.1
    )
    more = (after.peak_bytes - before.peak_bytes) / 1e6
    yield Line(f"{factor} x the input: memory", "the same (within 100 MB)", f"{more:+.0f} MB", more <= 100)


def figures(megabytes: int, rounds: int, factor: int) -> Iterator[Line]:
    """What is measured."""
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as name:
        folder = Path(name)
        given = prepared(folder, megabytes, min(2, os.cpu_count() or 1))
        best = measured(given, folder, rounds)
        yield from speed(given, best, folder)
        yield from scaling(folder, (given, best["ours"]), factor)


def proofs() -> Iterator[Line]:
    """What tests prove."""
    prefix, shard = f"{TESTS}/test_prefix.py", f"{TESTS}/test_shard.py"
    yield proven("Megatron's flags, abbreviations, repetition", f"{TESTS}/test_arguments.py")
    yield proven("every format; any text, any cut: each line once", "tests/text/test_ranges.py")
    yield proven("bytes as the format says, and as megatron-core writes", shard)
    yield proven("several keys, several tasks", prefix, "-k", "megatrons_command")
    yield proven("output independent of the number of tasks", f"{TESTS}/test_preprocess.py", "-k", "number_of_tasks")
    yield proven("S3 input and output on a real MinIO", prefix, "tests/text/test_source.py", "-k", "store or object")
    yield proven("workers killed in the middle: no byte changed", prefix, "-k", "workers_that")
    yield proven("spark-submit, a standalone cluster, an executor killed", prefix, "-k", "executor_of")
    yield proven("a killed driver's rerun reuses finished shards", prefix, "-k", "taken_up")
    yield proven("two attempts of a shard: one counts", shard, "-k", "attempts")
    yield proven("tokenizers: equal to their own library", f"{TESTS}/test_encoding.py")
    yield proven("bad input: one line, nothing left", prefix, "tests/text", "-k", "torn or cut_off or refused or told")


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--factor", type=int, default=10)
    options = parser.parse_args()
    judge(itertools.chain(proofs(), figures(options.mb, options.rounds, options.factor)))


if __name__ == "__main__":
    main()
