"""`make accept-preprocess`: every promise of the tokenization: wanted, measured, holds or not. Exit code 1 if not.

Speed and memory are measured here against the peers of `benchmarks.preprocess`; the tests named prove the rest. Takes
about a quarter of an hour; for some lines alone: `python -m benchmarks.accept_preprocess memory --mb 20`.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.acceptance import Line, is_asked, judge, parse_options, prove
from benchmarks.preprocess import Figure, Input, has_same_bytes, measure_all, prepare_input

TESTS = "tests/preprocess"
MEMORY = 1_500_000_000
LIMIT, MEGATRON = "Spark's job / the tokenizer's own limit", "whole command, times megatron-core's builder"
SAME, DATATROVE = "bytes equal to megatron-core's builder", "whole command, times datatrove"
PEAK = "peak memory of everything at two cores"
LARGER, LARGER_LIMIT = "times the input: time of the job", "times the input: Spark's job / the limit"
LARGER_MEGATRON = "times the input: whole command, times megatron-core's at its rate"
LARGER_PEAK, LARGER_MEMORY = "times the input: peak memory of everything", "times the input: memory"
BESIDE = (LIMIT, MEGATRON, SAME, DATATROVE, PEAK)
SCALED = (LARGER, LARGER_LIMIT, LARGER_MEGATRON, LARGER_PEAK, LARGER_MEMORY)
"""Lines that are measured: on one input, and on a larger one."""


def speed(corpus: Input, best: dict[str, Figure], folder: Path) -> Iterator[Line]:
    """Compared with the limit and the other tools."""
    mine = best["ours"]
    yield _share(LIMIT, corpus, mine, best["limit"])
    yield _times(MEGATRON, best.get("megatron"), mine.seconds, 3.0)
    same = "megatron" in best and has_same_bytes(folder)
    measured_text = ("equal" if same else "different") if "megatron" in best else "megatron-core is not installed"
    yield Line(SAME, "equal", measured_text, same)
    yield _times(DATATROVE, best.get("datatrove"), mine.seconds, 1.0)
    yield _peak(PEAK, mine)


def _share(promise: str, corpus: Input, mine: Figure, limit: Figure) -> Line:
    share, rate = limit.job_seconds / mine.job_seconds, corpus.bytes / 1e6 / mine.job_seconds
    measured_text = f"{share:.2f} ({rate:.1f} MB/s, {mine.tokens / 1e6 / mine.job_seconds:.2f} M tokens/s)"
    return Line(promise, ">= 0.9", measured_text, share >= 0.9)


def _times(promise: str, peer: Figure | None, seconds: float, budget: float) -> Line:
    times = peer.seconds / seconds if peer else 0.0
    return Line(promise, f">= {budget:.0f}", f"{times:.1f}" if peer else "it is not installed", times >= budget)


def _peak(promise: str, mine: Figure) -> Line:
    return Line(promise, "<= 1.5 GB", f"{mine.peak_bytes / 1e9:.2f} GB", mine.peak_bytes <= MEMORY)


def scaling(folder: Path, small: Input, best: dict[str, Figure], rounds: int, factor: int) -> Iterator[Line]:
    """With `factor` times the input. For megatron-core's builder the rate on the smaller input is used."""
    many, before = folder / "many.jsonl", best["ours"]
    with many.open("wb") as out:
        for _ in range(factor):
            out.write(small.text.read_bytes())
    corpus = Input(many, small.bytes * factor, small.tokenizer, small.cores)
    again, name = measure_all(corpus, folder, rounds, ("ours", "limit")), f"{factor} {{}}".format
    after = again["ours"]
    times = after.job_seconds / before.job_seconds
    yield Line(name(LARGER), f"<= {factor * 1.1:.1f} x", f"{times:.1f} x", times <= factor * 1.1)
    yield _share(name(LARGER_LIMIT), corpus, after, again["limit"])
    yield _times(name(LARGER_MEGATRON), best.get("megatron"), after.seconds / factor, 3.0)
    yield _peak(name(LARGER_PEAK), after)
    more = (after.peak_bytes - before.peak_bytes) / 1e6
    yield Line(name(LARGER_MEMORY), "the same (within 100 MB)", f"{more:+.0f} MB", more <= 100)


def figures(is_asked_for: Callable[[str], bool], megabytes: int, rounds: int, factor: int) -> Iterator[Line]:
    """The selected measurements."""
    beside, scaled = any(map(is_asked_for, BESIDE)), any(is_asked_for(f"{factor} {count}") for count in SCALED)
    if not beside and not scaled:
        return
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as name:
        folder = Path(name)
        corpus = prepare_input(folder, megabytes, min(2, os.cpu_count() or 1))
        best = measure_all(corpus, folder, rounds)
        if beside:
            yield from speed(corpus, best, folder)
        if scaled:
            yield from scaling(folder, corpus, best, rounds, factor)


PROVEN = {
    "Megatron's flags, abbreviations, repetition": ["test_arguments.py"],
    "every format; any text, any cut: each line once": ["test_ranges.py"],
    "bytes as the format says, and as megatron-core writes": ["the_bytes_are", "megatron_cores_builder"],
    "several keys, several tasks": ["megatrons_command"],
    "output independent of the number of tasks": ["number_of_tasks"],
    "S3 input and output on a real MinIO": ["test_source.py", "nothing_is_shared_but_the_store"],
    "our reader: mmap, or ranges of S3 in bounded memory": ["test_indexed_dataset.py", "test_range_reads.py"],
    "local[*] | spark:// | k8s://: what Spark is told": ["test_masters.py"],
    "spark://: dynamic executors of a real cluster": ["nothing_is_shared_but_the_store"],
    "spark-submit, an executor of a cluster killed: no byte changed": ["executor_of"],
    "workers killed in the middle: no byte changed": ["workers_that"],
    "two attempts of a shard: one counts": ["attempts"],
    "a killed driver's rerun reuses finished shards": ["taken_up", "finished_shard"],
    "tokenizers: equal to their own library, proven at the start": ["test_encoding.py"],
    "--train-tokenizer: a vocabulary of its own": ["test_tokenizer_training.py"],
    "duplicates, lengths, ftfy, validation: each counted": [
        "mended_left_out",
        "test_duplicates.py",
        "beyond_the_limits",
    ],
    "a page with lengths and documents": ["test_page.py"],
    "progress with rate and time left, also for Argo": ["test_progress.py"],
    "bad input: one line, nothing left": ["torn", "cut_off", "refused", "told", "full_disk", "not_repeated_or_mixed"],
}
"""Promise -> words in the names of the tests that prove it."""


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """The selected lines: the figures first, with the machine to themselves."""
    all_lines = figures(lambda promise: is_asked(promise, options.words), options.mb, options.rounds, options.factor)
    yield from (line for line in all_lines if is_asked(line.promise, options.words))
    yield from prove(PROVEN, options, [TESTS, "tests/text", "tests/data"])


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--factor", type=int, default=10)
    judge(lines(parse_options(parser, [*BESIDE, *SCALED, *PROVEN])))


if __name__ == "__main__":
    main()
