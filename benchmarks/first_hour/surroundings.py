"""A full disk, a clock that jumps, a tokenizer or a vocabulary that does not fit: each ends with one sentence."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.acceptance import Line
from benchmarks.first_hour.commands import EVERSTEP, PIPELINE, ask, going, one_line
from benchmarks.first_hour.stopping import by_hand
from tests.harness import wait_until

SLEEP_S, HOUR_S = 40.0, 3600
"""How long every process stands still: longer than any heartbeat may be late; and how far the wall clock is ahead
afterwards. On a laptop the monotonic clock stands still, too; here it goes on, which is harder."""
DISK_MB = 24
BIG_STATE = """
import time, everstep, torch
job = everstep.init()
state = {"weights": torch.ones(16 << 20)}
checkpointer = everstep.Checkpointer(state)
for iteration in range(checkpointer.load(state) + 1, 21):
    time.sleep(0.1)
    checkpointer.save(iteration, state)
checkpointer.finish(state)
"""
FILLS = """
with open("disk/data", "wb") as file:
    while True:
        file.write(bytes(1 << 20))
"""


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own, of a few MB."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)
        disk.rmdir()


def full_disks(folder: Path) -> Iterator[Line]:
    """One that a script fills, and one that a store is on."""
    (folder / "fills.py").write_text(FILLS)
    (folder / "big.py").write_text(BIG_STATE)
    with small_disk(folder):
        answer = ask(folder, [EVERSTEP, "launch", "--standalone", "fills.py"])
    errors = re.findall(r"OSError: .*No space left on device", answer.text)
    summary_text = f"exit {answer.code}: {errors[-1] if errors else answer.last}"
    yield Line("a script that fills the disk", "exit 1, said", summary_text[:200], answer.code == 1 and bool(errors))
    with small_disk(folder) as disk:
        words = by_hand(folder, "full", script="big.py", store=disk / "store", iterations=20)
        answer = ask(folder, [*words, "--persist-interval=5"])
    errors = re.findall(r"No space left on device; free some space[^\n]*", answer.text)
    summary_text = f"exit {answer.code}, {answer.seconds:.0f} s: {errors[-1] if errors else answer.last}"
    yield Line("a store on a full disk", "not exit 0, said", summary_text[:200], answer.code != 0 and bool(errors))


def asleep(folder: Path) -> Iterator[Line]:
    """A laptop that sleeps for an hour: every process stops, and the wall clock is an hour ahead when they go on."""
    ahead, library = folder / "ahead", folder / "clock_ahead.so"
    ahead.write_bytes(struct.pack("q", 0))
    source = Path(__file__).with_name("clock_ahead.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    preloaded = ["env", f"LD_PRELOAD={library}", f"CLOCK_AHEAD={ahead}"]
    with going(folder, [*preloaded, *by_hand(folder, "asleep", script=slow_script(folder))]) as run:
        wait_until((folder / "slow.begun").exists, "the training")
        mine = [process for process in psutil.process_iter() if _is_of(process, str(folder))]
        for process in mine:
            process.send_signal(signal.SIGSTOP)
        threading.Event().wait(SLEEP_S)
        with ahead.open("r+b") as file:
            file.write(struct.pack("q", HOUR_S))
        for process in mine:
            process.send_signal(signal.SIGCONT)
        outcome = run.end()
    round_lines = re.findall(r"round \d+[^\n]*|a new master[^\n]*", outcome.text)
    summary_text = (
        f"exit {outcome.code}, {len(mine)} processes stopped; {'; '.join(round_lines[-2:]) or 'nothing restarted'}"
    )
    yield Line(
        "a laptop that sleeps for an hour", "trains to the end", summary_text[:300], outcome.code == 0 and len(mine) > 2
    )


def slow_script(folder: Path) -> str:
    """A script of 40 iterations in 20 s."""
    (folder / "slow.begun").unlink(missing_ok=True)
    path = folder / "slow.py"
    path.write_text(
        "import time, everstep, torch\njob = everstep.init()\nstate = {'model': torch.nn.Linear(4, 4)}\n"
        "checkpointer = everstep.Checkpointer(state)\nbegun = checkpointer.load(state)\n"
        "for iteration in range(begun + 1, 41):\n    time.sleep(0.5)\n    checkpointer.save(iteration, state)\n"
        f"    open({str(folder / 'slow.begun')!r}, 'w')\n"
    )
    return str(path)


def _is_of(process: psutil.Process, folder: str) -> bool:
    try:
        return process.cwd() == folder and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid()
    except psutil.Error:
        return False


def vocabularies(folder: Path) -> Iterator[Line]:
    """A tokenizer of more tokens than the model has, a vocabulary without bounds."""
    model = folder / "llama"
    model.mkdir()
    config = {"model_type": "llama", "vocab_size": 100, "max_position_embeddings": 512}
    (model / "config.json").write_text(json.dumps(config))
    (model / "model.safetensors").touch()
    tokens = {f"t{token}": token for token in range(300)}
    (folder / "other.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": tokens, "merges": []}}))
    words = [*PIPELINE, "--model", "llama", "--tokenizer", "other.json"]
    fits = r"--tokenizer other.json has 300 tokens, the model knows 100"
    yield one_line("a tokenizer that does not fit the model", ask(folder, words), fits)
    (folder / "large.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1_999_999}}}))
    words = [*PIPELINE, "--nodes", "100", "--global-batch", "100", "--tokenizer", "large.json"]
    large = r"--tokenizer large.json: with 2000000 tokens the model has 515 M parameters; .* at least \d+ GB"
    yield one_line("a tokenizer that makes the model too large for the machine", ask(folder, words), large)
    for size in ("99999999999999999999", "1"):
        words = [sys.executable, "-m", "everstep.steps.preprocess", "--input", ".", "--vocab-size", size]
        words += ["--output-prefix", "x"]
        (folder / "text.txt").write_text("some text\n")
        yield one_line(f"a vocabulary of {size} tokens", ask(folder, words), f"--vocab-size {size}: ")


def early_text(folder: Path) -> Iterator[Line]:
    """Text of which nothing can be evaluated: known before the training."""
    lines = (json.dumps({"text": f"far too short {number}"}) for number in range(200))
    (folder / "short.jsonl").write_text("\n".join(lines))
    answer = ask(folder, [*PIPELINE, "--corpus", "short.jsonl", "--nodes", "1", "--name", "short"])
    logs = sorted(path.name for path in (folder / "runs/short/logs").glob("*"))
    errors = re.findall(r"--sequence-length 96: [^\n]*", answer.text)
    has_trained = any("worker" in name for name in logs)
    summary_text = f"exit {answer.code}: {errors[-1] if errors else answer.last}"
    holds = answer.code != 0 and bool(errors) and not has_trained
    yield Line(
        "text that is too short to train on, or to be measured", "said before training", summary_text[:300], holds
    )


def measure(folder: Path) -> Iterator[Line]:
    """All lines of this part."""
    yield from full_disks(folder)
    yield from vocabularies(folder)
    yield from early_text(folder)
    yield from asleep(folder)
