"""`make accept-checkpoint`: every promise about checkpoints: wanted, measured, holds or not.

The tests named here prove most promises. Ratios (`benchmarks.checkpoint`), runs that leave nothing behind, the long
series of kills and the fine-tuning of a real model are measured here. Words on the command line select lines.
"""

import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import checkpoint
from benchmarks.acceptance import Line, is_asked, judge, parse_options, prove
from benchmarks.main_job import memory_of
from tests.harness import ROOT, SHARED_MEMORY, Pipeline, job_mark, kill

CHECKPOINT, STORE, MASTER = "tests/checkpoint/", "tests/store/", "tests/master/"
KEEPER, FRAMEWORKS = f"{CHECKPOINT}test_keeper.py", f"{CHECKPOINT}test_frameworks.py"
SHARDED, COPIES = f"{CHECKPOINT}test_sharded.py", f"{CHECKPOINT}test_copies.py"
RESTORING, WIRE = f"{CHECKPOINT}test_restoring.py", f"{STORE}test_s3_on_a_wire.py"
WORKS = {
    "1 save blocks for a copy, load restores in place, under everstep launch": (
        KEEPER, f"{CHECKPOINT}test_allocating.py", RESTORING, "tests/launch/test_resuming.py",
    ),
    "1 a plain python script keeps its own, on one rank and on several": (
        "tests/training/test_training_loop.py::without_agent", f"{CHECKPOINT}test_standalone.py",
    ),
    "2 plain and DDP state": (RESTORING, f"{CHECKPOINT}test_walk.py"),
    "2 FSDP2 and tensor parallelism, no all-gather in save; 2 -> 3 -> 1, another mesh": (
        SHARDED, f"{CHECKPOINT}test_no_collective.py",
    ),
    "2 FSDP1's SHARDED_STATE_DICT, loaded at another world size": (f"{FRAMEWORKS}::fsdp1",),
    "2 Hugging Face Trainer: a callback; killed, it goes on": (f"{FRAMEWORKS}::trainer",),
    "2 DLRover's names and their meaning": (f"{FRAMEWORKS}::dlrover", f"{FRAMEWORKS}::by_the_path"),
    "3 own memory -> peer -> store; the plan says from where and why; a wrong digest falls through": (
        f"{KEEPER}::memory", f"{KEEPER}::peer", f"{KEEPER}::source", COPIES,
    ),
    "4 one contract for the directory and a real MinIO; create is atomic": (f"{STORE}test_store_contract.py",),
    "4 parts, in parallel, bounded memory, retries, bandwidth limit": (WIRE, f"{STORE}test_pace.py"),
    "4 the usual variables, CA file; what is wrong is one line": (f"{STORE}test_s3_store.py",),
    "4 the whole main job on MinIO": (f"{STORE}test_main_job_on_s3.py",),
    "5 when workers die the newest state is persisted unasked": (f"{KEEPER}::unasked",),
    "5 every N iterations, or --checkpoint-overhead; in log and report": (
        f"{CHECKPOINT}test_persist_interval.py", f"{CHECKPOINT}test_staging_interval.py", f"{KEEPER}::interval",
        "tests/report/",
    ),
    "6 --model s3://..., and smollm2 converted once": ("tests/model/",),
    "7 keeps the last N and every Mth; debris": (
        f"{CHECKPOINT}test_retention.py", f"{KEEPER}::debris", f"{MASTER}test_troubled_store.py::deleted",
        f"{MASTER}test_troubled_store.py::debris",
    ),
    "7 everstep checkpoint ls, verify, export": ("tests/face/test_checkpoint_command.py",),
    "7 memory arithmetic at the start; /dev/shm too small is told with the mend": (
        f"{KEEPER}::arithmetic", f"{CHECKPOINT}::room_for",
    ),
    "7 NaN after a restore steps back": ("tests/training/test_diverged.py", "tests/job/test_job_rules.py::no_number"),
}  # fmt: skip
PROOFS = {
    "every interleaving: some state is held whole, a restore is of one, a manifest names what is there": (
        f"{CHECKPOINT}test_copies_properties.py", f"{CHECKPOINT}test_slots.py",
    ),
    "the contract on a store that is slow, truncates, hides its success": (f"{STORE}test_store_contract.py::wire",),
    "ambiguous success, 412 after own success, truncated, full: S3 on a bad wire": (WIRE,),
    "saves and restores on a store that refuses, lies about its success, is full, slow, truncates": (
        f"{CHECKPOINT}test_on_a_bad_store.py", f"{KEEPER}::refused", f"{KEEPER}::slow",
    ),
    "the master on such a store; a list that lags behind": (f"{MASTER}test_troubled_store.py", f"{MASTER}::lags"),
    "a bit flipped in memory, a peer's copy, the store's object: found, named, the next tier used": (
        f"{CHECKPOINT}::flipped", f"{CHECKPOINT}test_damaged.py", f"{KEEPER}::no_source",
    ),
    "SIGKILL at every named point, DDP and FSDP2": (
        f"{CHECKPOINT}test_save_kill_restore.py", SHARDED, f"{CHECKPOINT}test_random_kills.py",
    ),
    "DISK after MEMORY and MEMORY after DISK all commit": (f"{FRAMEWORKS}::memory_and_disk",),
    "/dev/shm holds nothing of ours after a node has left": (
        f"{KEEPER}::leaves_no_shared", f"{KEEPER}::close_leaves", f"{KEEPER}::debris_of", f"{COPIES}::outlives",
        f"{CHECKPOINT}test_allocating.py::leaves_nothing",
    ),
    "an unsupported object is named by its key path": (f"{CHECKPOINT}test_layout.py::key_path",),
    "a store that ignores If-None-Match is refused at the start": (f"{WIRE}::if_none_match",),
    "another model's checkpoint: at most 10 keys of a kind, nothing loaded": (f"{RESTORING}::another_model",),
}  # fmt: skip
PROVEN = WORKS | PROOFS
"""Promise -> the tests that prove it, in the words of `acceptance.proven`."""
KILLS, RUNS = 200, 50
CUDA = "on CUDA: stall of an overlapped save, bit-exact restore"
SERIES = "SIGKILL at random moments of save and persist, DDP and FSDP2: never an empty, never a mixed load"
LEFT = "/dev/shm holds nothing of ours after runs, every other one killed"
RATIOS = "ratios: save, restore and persist beside memcpy, loopback and a plain upload"
REAL = "6 smollm2: 20 iterations of 512 tokens by the pipeline, a worker killed"
EXPORTED = "7 that model exported, loaded by transformers"
SCRIPT = """
import os, threading, torch, everstep
everstep.init()
state = {"model": torch.nn.Linear(64, 64), "done": 0}
checkpointer = everstep.Checkpointer(state)
for iteration in range(checkpointer.load(state) + 1, 31):
    everstep.phase("work")
    checkpointer.save(iteration, state)
    open("going", "w").close()
    threading.Event().wait(0.02)
checkpointer.finish(state)
"""
LOADED = """
import sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(sum(p.numel() for p in model.parameters()), bool(torch.isfinite(model(torch.tensor([[1, 2, 3]])).logits).all()))
"""
PARAMETERS = 134_515_008
"""Parameters of SmolLM2-135M."""
PERPLEXITY = re.compile(r"perplexity ([\d.]+) \(untrained: ([\d.]+)\)")
"""The evaluate step's line."""
KILL_AT = 8
PATIENCE_S = 1800.0


def cuda(_: argparse.Namespace) -> Iterator[Line]:
    """Tests on a CUDA device; without one, the line says that they were skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests/checkpoint/test_cuda.py"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    skipped = [line for line in run.stdout.splitlines() if line.startswith("SKIPPED")]
    last = (run.stdout.strip().splitlines() or [run.stderr[-80:]])[-1]
    has_gpu = Path("/dev/nvidia0").exists()
    reason = skipped[0].rpartition(": ")[2] if skipped else last
    yield Line(
        CUDA,
        "tests pass" if has_gpu else "skipped by name",
        reason,
        run.returncode == 0 and bool(skipped) != has_gpu,
    )


def series(options: argparse.Namespace) -> Iterator[Line]:
    """Kill trainings at random moments, `kills` times for each kind of state."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/checkpoint/test_random_kills.py"]
    kills = options.kills
    environment = {**os.environ, "EVERSTEP_ROUNDS": str(kills)}
    began = time.monotonic()
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        print(run.stdout[-6000:], run.stderr[-1000:], file=sys.stderr)
    measured_text = f"exit code {run.returncode}, {(time.monotonic() - began) / (2 * kills):.1f} s a kill"
    yield Line(SERIES, f"{kills} of each pass", measured_text, run.returncode == 0)


def leftovers(options: argparse.Namespace) -> Iterator[Line]:
    """Launch a small script repeatedly; kill every other launch, or its worker, and start it again."""
    chance, residues = random.Random(0), set[str]()
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        killed = failed = 0
        for number in range(options.runs):
            job, kills = f"accept-{os.getpid()}-{number}", number % 2
            (folder / "going").unlink(missing_ok=True)
            process = _launch(folder, job)
            while kills and not (folder / "going").exists() and process.poll() is None:
                time.sleep(0.01)
            if kills:
                time.sleep(chance.random() * 0.3)
                process.send_signal(signal.SIGKILL)
                killed += process.wait() == -signal.SIGKILL
                process = _launch(folder, job)
            failed += process.wait(PATIENCE_S) != 0
            residues |= {path.name for path in SHARED_MEMORY.glob(f"*{job_mark(job)}*")}
    measured_text = (
        f"{options.runs} runs, {killed} killed, {failed} failed, left: {', '.join(sorted(residues)[:3]) or 'nothing'}"
    )
    yield Line(LEFT, "nothing", measured_text, not residues and not failed and killed == options.runs // 2)


def _launch(folder: Path, job: str) -> subprocess.Popen[bytes]:
    flags = ["--standalone", "--store=store", f"--rdzv-id={job}", "--rdzv-conf=keep_alive_interval=2"]
    command = [sys.executable, "-m", "everstep", "launch", *flags, "train.py"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=_environment(), stdout=log, stderr=log)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def finetune(_: argparse.Namespace) -> Iterator[Line]:
    """Fine-tune a real model through the pipeline, kill a worker, export the model and load it."""
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as name:
        folder = Path(name)
        flags = ("--model", "smollm2", "--nodes", "1", "--iterations", "20", "--sequence-length", "128")
        run = Pipeline(folder / "runs" / "real", folder / "runs" / "store", name="real",
                       flags=(*flags, "--global-batch", "4"))  # fmt: skip
        began, killed = time.monotonic(), 0
        process = run.start()
        with memory_of(run, process.pid) as memory:
            while process.poll() is None and time.monotonic() < began + PATIENCE_S:
                if not killed and run.iteration() >= KILL_AT and (workers := run.workers()):
                    kill(workers[0])
                    killed = run.iteration()
                time.sleep(0.1)
        code, took = process.poll(), time.monotonic() - began
        lines = [line for line in run.telemetry() if "loss" in line]
        last = {line["iteration"]: line["loss"] for line in lines}
        losses = [last[iteration] for iteration in sorted(last)]
        first, end = (statistics.mean(part) if part else 0.0 for part in (losses[:5], losses[-5:]))
        measured_text = (
            f"exit code {code}, {took:.0f} s, {memory.peak / 1e9:.1f} GB, killed at {killed}, {len(losses)} iterations"
        )
        # A batch of 512 tokens is noisy: five losses vary by more than 20 iterations of training gain.
        measured_text += f", loss {first:.2f} -> {end:.2f}, left: {run.leftovers() or 'nothing'}"
        scores = PERPLEXITY.search(run.log.read_text())
        reached, untrained = (float(score) for score in scores.groups()) if scores else (0.0, 0.0)
        measured_text += f", perplexity of validation data {untrained} -> {reached}"
        holds = code == 0 and reached < untrained and bool(killed) and len(losses) == 20 and not run.leftovers()
        yield Line(REAL, "ends well, the perplexity of validation data falls", measured_text, holds)
        if code != 0:
            print(run.last_words()[-6000:], file=sys.stderr)
            run.kill_all()
            yield Line(EXPORTED, f"{PARAMETERS} True", "nothing to export", False)
            return
        job, target = f"{run.store}/jobs/{run.jobs()[0]}", folder / "exported"
        command = [sys.executable, "-m", "everstep", "checkpoint", "export", job, str(target)]
        completed = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
        load = [sys.executable, "-c", LOADED, str(target)]
        loaded = subprocess.run(load, capture_output=True, text=True, check=False).stdout.strip()
        measured_text = loaded or completed.stderr.strip()[-100:]
        yield Line(EXPORTED, f"{PARAMETERS} True", measured_text, loaded == f"{PARAMETERS} True")


MEASURED: dict[tuple[str, ...], Callable[[argparse.Namespace], Iterator[Line]]] = {
    (CUDA,): cuda,
    (SERIES,): series,
    (LEFT,): leftovers,
    (RATIOS,): lambda options: (line for line in checkpoint.lines(options) if line.wanted),
    (REAL, EXPORTED): finetune,
}
"""Lines that are measured together."""


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """The selected lines: the figures first, with the machine to themselves."""
    for names, measure in MEASURED.items():
        if any(is_asked(name, options.words) for name in names):
            yield from measure(options)
    yield from prove(PROVEN, options)


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = checkpoint.arguments()
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kills", type=int, default=KILLS, help="of each kind of state")
    parser.add_argument("--runs", type=int, default=RUNS, help="after which nothing may be left")
    judge(lines(parse_options(parser, [*(name for names in MEASURED for name in names), *PROVEN])))


if __name__ == "__main__":
    main()
