"""Tokenization compared with dedicated tools and its own limit, on the same text in one run.

The limit: one process per core reads, parses and encodes the same input with the same tokenizer and writes nothing,
without Spark. megatron-core's builder is fed as Megatron-LM's tools/preprocess_data.py feeds it: a pool of processes
encodes with tokenizers, the parent builds. datatrove tokenizes with its own pipeline. Peers that are not installed are
left out with a message (pip install megatron-core 'datatrove[processing]' orjson). On a busy machine look at the CPU
seconds: they exclude what other programs took.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benchmarks.corpus import write
from benchmarks.main_job import Memory, sample_memory, table, tree
from tests.harness import ROOT

VOCABULARY = 32_000
ALL = ("ours", "limit", "megatron", "datatrove")


@dataclass(frozen=True)
class Input:
    """The common input."""

    text: Path
    """.jsonl"""
    bytes: int
    """Bytes of text, UTF-8."""
    tokenizer: Path
    """tokenizer.json"""
    cores: int


@dataclass(frozen=True)
class Figure:
    """The figures of one tool."""

    seconds: float
    """Seconds of the whole command."""
    job_seconds: float
    """Seconds from the first byte read to the last written, for Everstep and the limit; for others as `seconds`."""
    cpu_seconds: float
    """User and system time of all its processes."""
    tokens: int
    peak_bytes: int
    """PSS of all its processes."""


@contextmanager
def sample_processes(pid: int, every_s: float = 0.2) -> Iterator[tuple[Memory, dict[psutil.Process, float]]]:
    """The peak PSS of a process and its children while the block runs, and the CPU seconds of each.

    Sampled, not added up by the kernel: Spark's Python workers are not waited for, so nobody would have theirs. What a
    process does after its last sample is left out.
    """
    cpu_seconds: dict[psutil.Process, float] = {}

    def total() -> int:
        processes = tree(pid)
        for process in processes:
            with suppress(psutil.Error):
                times = process.cpu_times()
                cpu_seconds[process] = times.user + times.system
        return sum(_pss(process.pid) for process in processes)

    with sample_memory(total, every_s) as memory:
        yield memory, cpu_seconds


def _pss(pid: int) -> int:
    """PSS in bytes; 0 for a process that is gone. The kernel's own sum: adding up all mappings of a Java is slow."""
    with suppress(OSError, ValueError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 0


def measure_everstep(corpus: Input, folder: Path) -> Figure:
    """Time `python -m everstep.steps.preprocess`, the whole command."""
    command = [
        *(sys.executable, "-m", "everstep.steps.preprocess", "--input", str(corpus.text), "--append-eod", "--force"),
        *("--output-prefix", str(folder / "ours"), "--tokenizer-type", "HFTokenizer", "--vocab", str(corpus.tokenizer)),
        *("--spark-master", f"local[{corpus.cores}]", "--log-interval", "10000000"),
        *("--store", str(folder / "store"), "--outputs", str(folder / "outputs")),
    ]
    took = _measure(command)
    facts = json.loads((folder / "store/runs/by-hand/steps/preprocess.json").read_text())["facts"]
    return replace(took, job_seconds=facts["seconds"], tokens=facts["tokens"])


def measure_peer(name: str, corpus: Input, folder: Path) -> Figure:
    """Time a module of benchmarks/peers as a process, after removing its earlier output.

    It prints the number of tokens; the limit first prints the seconds of its job.
    """
    for leftover in folder.glob(f"{name}*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    command = [sys.executable, "-m", f"benchmarks.peers.{name}", str(corpus.text), str(corpus.tokenizer)]
    command += [str(folder / name), str(corpus.cores)]
    token_file = folder / f"{name}.tokens"
    took, (*_, seconds, tokens) = _measure(command, token_file), ["", *token_file.read_text().split()]
    return replace(took, tokens=int(tokens), job_seconds=float(seconds) if name == "limit" else took.seconds)


def _measure(command: list[str], output: Path | None = None) -> Figure:
    """Time a command; the figure lacks the tokens. Raises RuntimeError if it fails."""
    started = time.monotonic()
    with (output or Path(os.devnull)).open("w") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=errors)
        with sample_processes(process.pid) as (memory, cpu_seconds):
            process.wait()
        seconds = time.monotonic() - started
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f"{command[2]} ended with {process.returncode}: {errors.read()[-2000:]}")
    return Figure(seconds, seconds, sum(cpu_seconds.values()), 0, memory.peak)


def prepare_input(folder: Path, megabytes: int, cores: int) -> Input:
    """Write the text, and train a tokenizer on some of it."""
    from everstep.steps.preprocess.vocabulary import train

    file = folder / f"{megabytes}.jsonl"
    documents, rounds = write(file, megabytes * 1_000_000)
    with file.open() as lines:
        texts = [json.loads(line)["text"] for line in lines]
    size, every = sum(len(text.encode()) for text in texts), max(1, megabytes // 8)
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_bytes(train(iter(texts[::every]), VOCABULARY, "", True).json)
    print(f"{size / 1e6:.0f} MB, {documents} documents (what is installed, {rounds:.0f} times)", file=sys.stderr)
    return Input(file, size, tokenizer, cores)


def has_same_bytes(folder: Path) -> bool:
    """Do our files equal those of megatron-core's builder?"""
    ours_, theirs = folder / "ours_text_document", folder / "megatron"
    return all(
        subprocess.run(["cmp", "-s", f"{ours_}.{suffix}", f"{theirs}.{suffix}"], check=False).returncode == 0
        for suffix in ("bin", "idx")
    )


def measure_all(corpus: Input, folder: Path, rounds: int, names: Sequence[str] = ALL) -> dict[str, Figure]:
    """The best of `rounds` for each tool. The tools take turns, so that each has the machine at its best once."""
    peers = {"limit": "tiktoken", "megatron": "megatron.core", "datatrove": "datatrove"}
    best: dict[str, Figure] = {}
    for _ in range(rounds):
        for name in names:
            if name != "ours" and importlib.util.find_spec(peers[name]) is None:
                print(f"{name}: not installed, left out", file=sys.stderr)
                continue
            figure = measure_everstep(corpus, folder) if name == "ours" else measure_peer(name, corpus, folder)
            print(f"{name}: {figure.seconds:.1f} s, {corpus.bytes / 1e6 / figure.seconds:.1f} MB/s", file=sys.stderr)
            if name not in best or figure.seconds < best[name].seconds:
                best[name] = figure
    return best


def rows_of(corpus: Input, best: dict[str, Figure]) -> list[tuple[str, str, str]]:
    """The figures as rows; with budgets where the design has one."""
    rows = []
    for name, figure in best.items():
        measured_text = (
            f"{corpus.bytes / 1e6 / figure.seconds:.1f} MB/s, {figure.tokens / 1e6 / figure.seconds:.2f} M tokens/s"
        )
        measured_text += f", {figure.cpu_seconds:.1f} s of CPU, {figure.peak_bytes / 1e6:.0f} MB"
        rows.append((f"{name}, the whole command", measured_text, ""))
    mine, megabytes = best["ours"], corpus.bytes / 1e6
    rows.append(("ours, Spark's job alone", f"{megabytes / mine.job_seconds:.1f} MB/s", ""))
    share = best["limit"].job_seconds / mine.job_seconds
    rows.append(("Spark's job / the limit", f"{share:.2f}", ">= 0.9"))
    if "megatron" in best:
        rows.append(("whole command / megatron-core's", f"{best['megatron'].seconds / mine.seconds:.1f}", ">= 3"))
    rows.append(("peak memory, all processes", f"{mine.peak_bytes / 1e6:.0f} MB", "<= 1500 MB"))
    return rows


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cores", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as name:
        corpus = prepare_input(Path(name), options.mb, options.cores)
        best = measure_all(corpus, Path(name), options.rounds)
        print(table(rows_of(corpus, best)))
        if "megatron" in best:
            print(f"\nbytes equal to megatron-core's: {'yes' if has_same_bytes(Path(name)) else 'NO'}")


if __name__ == "__main__":
    main()
