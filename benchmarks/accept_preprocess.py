"""`make accept-preprocess`: every promise of the tokenization: wanted, measured, holds or not. Exit code 1 if not all.

Speed and memory are measured here beside the peers of `benchmarks.preprocess`; the rest is proven by the tests named.
"""

import argparse
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.acceptance import Line, judge, proven_together
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


PROOFS = {
    "Megatron's flags, abbreviations, repetition": ["test_arguments.py"],
    "every format; any text, any cut: each line once": ["test_ranges.py"],
    "bytes as the format says, and as megatron-core writes": ["the_bytes_are", "megatron_cores_builder"],
    "several keys, several tasks": ["megatrons_command"],
    "output independent of the number of tasks": ["number_of_tasks"],
    "S3 input and output on a real MinIO": ["test_source.py", "nothing_is_shared_but_the_store"],
    "our reader: mmap, or ranges of S3 in bounded memory": ["test_indexed.py", "test_ranged.py"],
    "local[*] | spark:// | k8s://: what Spark is told": ["test_masters.py"],
    "spark://: dynamic executors of a real cluster": ["nothing_is_shared_but_the_store"],
    "spark-submit, an executor of a cluster killed: no byte changed": ["executor_of"],
    "workers killed in the middle: no byte changed": ["workers_that"],
    "two attempts of a shard: one counts": ["attempts"],
    "a killed driver's rerun reuses finished shards": ["taken_up", "finished_shard"],
    "tokenizers: equal to their own library, proven at the start": ["test_encoding.py"],
    "--train-tokenizer: a vocabulary of its own": ["test_training.py"],
    "duplicates, lengths, ftfy, validation: each counted": [
        "mended_left_out",
        "test_duplicates.py",
        "beyond_the_limits",
    ],
    "a page with lengths and documents": ["test_page.py"],
    "progress with rate and time left, also for Argo": ["test_progress.py"],
    "bad input: one line, nothing left": ["torn", "cut_off", "refused", "told", "full_disk", "not_repeated_or_mixed"],
}
"""What tests prove, and words in their names."""


def proofs() -> Iterator[Line]:
    """What tests prove."""
    yield from proven_together([TESTS, "tests/text", "tests/data"], PROOFS)


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
