"""`make accept-checkpoint`: every promise about checkpoints: wanted, measured, holds or not.

What tests prove is proven by the tests whose names the line has; ratios (`benchmarks.checkpoint`), runs that leave
nothing behind, the long series of kills and the fine-tuning of a real model are measured here. `--lines WORD` judges
the lines with that word only, `--list` names them all.
"""

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import checkpoint
from benchmarks.acceptance import Line, judge, proven_together
from benchmarks.main_job import memory_of
from tests.harness import ROOT, SHARED_MEMORY, Pipeline, job_mark, kill

PATHS = (
    "tests/checkpoint", "tests/store", "tests/training", "tests/model", "tests/master", "tests/report",
    "tests/launch/test_resuming.py", "tests/face/test_checkpoint_command.py", "tests/job/test_job_rules.py",
)  # fmt: skip
WORKS = {
    "1 save blocks for a copy, load restores in place, under everstep launch": [
        "test_keeper.py",
        "test_restoring.py",
        "test_resuming.py",
    ],
    "1 a plain python script keeps its own, on one rank and on several": ["training without_agent", "test_alone.py"],
    "2 plain and DDP state": ["test_restoring.py", "test_walk.py"],
    "2 FSDP2 and tensor parallelism, no all-gather in save; 2 -> 3 -> 1, another mesh": [
        "test_sharded.py",
        "test_no_collective.py",
    ],
    "2 FSDP1's SHARDED_STATE_DICT, loaded at another world size": ["test_frameworks.py fsdp1"],
    "2 Hugging Face Trainer: a callback; killed, it goes on": ["test_frameworks.py trainer"],
    "2 DLRover's names and their meaning": ["test_frameworks.py dlrover", "test_frameworks.py path"],
    "3 own memory -> peer -> store; the plan says from where and why; a wrong digest falls through": [
        "test_keeper.py memory",
        "test_keeper.py peer",
        "test_keeper.py source",
        "test_copies.py",
    ],
    "4 one contract for the directory and a real MinIO; create is atomic": ["test_store_contract.py"],
    "4 parts, in parallel, bounded memory, retries, bandwidth limit": ["test_s3_on_a_wire.py", "test_pace.py"],
    "4 the usual variables, CA file; what is wrong is one line": ["test_s3_store.py"],
    "4 the whole main job on MinIO": ["test_main_job_on_s3.py"],
    "5 when workers die the newest state is persisted unasked": ["test_keeper.py unasked"],
    "5 every N iterations, or --checkpoint-overhead; in log and report": [
        "test_cadence.py",
        "test_thinning.py",
        "test_keeper.py interval",
        "tests/report interval",
    ],
    "6 --model s3://..., and smollm2 converted once": ["tests/model"],
    "7 keeps the last N and every Mth; debris": ["test_retention.py", "test_keeper.py debris", "tests/master delete"],
    "7 everstep checkpoint ls, verify, export": ["test_checkpoint_command.py"],
    "7 memory arithmetic at the start; /dev/shm too small is told with the mend": ["arithmetic", "room_for"],
    "7 NaN after a restore steps back": ["test_diverged.py", "test_job_rules.py no_number"],
}
PROOFS = {
    "every interleaving: some state is held whole, a restore is of one, a manifest names what is there": [
        "test_copies_properties.py",
        "test_slots.py",
    ],
    "the contract on a store that is slow, truncates, hides its success": ["test_store_contract.py wire"],
    "ambiguous success, 412 after own success, truncated, full: S3 on a bad wire": ["test_s3_on_a_wire.py"],
    "saves and restores on a store that refuses, lies about its success, is full, slow, truncates": [
        "test_on_a_bad_store.py",
        "test_keeper.py refused",
        "test_keeper.py slow",
    ],
    "the master on such a store; a list that lags behind": ["tests/master troubled", "tests/master lags"],
    "a bit flipped in memory, a peer's copy, the store's object: found, named, the next tier used": [
        "tests/checkpoint flipped",
        "test_keeper.py no_source",
    ],
    "SIGKILL at every named point, DDP and FSDP2": ["test_save_kill", "test_sharded.py", "test_random_kills.py"],
    "DISK after MEMORY and MEMORY after DISK all commit": ["test_frameworks.py memory_and_disk"],
    "/dev/shm holds nothing of ours after a node has left": [
        "leaves_no_shared",
        "close_leaves",
        "outlives",
        "debris_of",
    ],
    "an unsupported object is named by its key path": ["test_layout.py key_path"],
    "a store that ignores If-None-Match is refused at the start": ["test_s3_on_a_wire.py if_none_match"],
    "another model's checkpoint: at most 10 keys of a kind, nothing loaded": ["test_restoring.py another_model"],
}
"""What tests prove, and words in their names."""
KILLS, RUNS = 200, 50
CUDA = "on CUDA: stall of an overlapped save, bit-exact restore"
SERIES = f"SIGKILL at {KILLS} random moments of save and persist, DDP and FSDP2: never an empty, never a mixed load"
LEFT = f"/dev/shm holds nothing of ours after {RUNS} runs, every other one killed"
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
"""Of SmolLM2-135M."""
KILL_AT = 8
PATIENCE_S = 1800.0


def cuda() -> Iterator[Line]:
    """Proven where there is a device, skipped by name elsewhere."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests/checkpoint/test_cuda.py"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    skipped = [line for line in run.stdout.splitlines() if line.startswith("SKIPPED")]
    last = (run.stdout.strip().splitlines() or [run.stderr[-80:]])[-1]
    there = Path("/dev/nvidia0").exists()
    told = skipped[0].rpartition(": ")[2] if skipped else last
    yield Line(CUDA, "tests pass" if there else "skipped by name", told, run.returncode == 0 and bool(skipped) != there)


def series(kills: int) -> Iterator[Line]:
    """As many kills as the issue asks for, of each kind of state."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/checkpoint/test_random_kills.py"]
    environment = {**os.environ, "EVERSTEP_ROUNDS": str(kills)}
    began = time.monotonic()
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    last = run.stdout.strip().splitlines()[-1:] or [run.stderr.strip()[-80:]]
    if run.returncode:
        print(run.stdout[-6000:], file=sys.stderr)
    told = f"{kills} of each: {last[0]}, {(time.monotonic() - began) / (2 * kills):.1f} s a kill"
    yield Line(SERIES, "tests pass", told, run.returncode == 0 and "skipped" not in last[0])


def leftovers(runs: int) -> Iterator[Line]:
    """Launches of a small script, of which every other one, or its worker, is killed and then started again."""
    chance, found = random.Random(0), set[str]()
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        killed = failed = 0
        for number in range(runs):
            job, kills = f"accept-{os.getpid()}-{number}", number % 2
            (folder / "going").unlink(missing_ok=True)
            process = _launched(folder, job)
            while kills and not (folder / "going").exists() and process.poll() is None:
                time.sleep(0.01)
            if kills:
                time.sleep(chance.random() * 0.3)
                process.send_signal(signal.SIGKILL)
                killed += process.wait() == -signal.SIGKILL
                process = _launched(folder, job)
            failed += process.wait(PATIENCE_S) != 0
            found |= {path.name for path in SHARED_MEMORY.glob(f"*{job_mark(job)}*")}
    told = f"{killed} killed, {failed} failed, left: {', '.join(sorted(found)[:3]) or 'nothing'}"
    yield Line(LEFT, "nothing", told, not found and not failed and killed == runs // 2)


def _launched(folder: Path, job: str) -> subprocess.Popen[bytes]:
    flags = ["--standalone", "--store=store", f"--rdzv-id={job}", "--rdzv-conf=keep_alive_interval=2"]
    command = [sys.executable, "-m", "everstep", "launch", *flags, "train.py"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=_environment(), stdout=log, stderr=log)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def finetuned() -> Iterator[Line]:
    """A real model, through the pipeline with a worker killed, and out again."""
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
        told = (
            f"exit code {code}, {took:.0f} s, {memory.peak / 1e9:.1f} GB, killed at {killed}, {len(losses)} iterations"
        )
        told += f", loss {first:.2f} -> {end:.2f}, left: {run.left() or 'nothing'}"
        holds = code == 0 and end < first and bool(killed) and len(losses) == 20 and not run.left()
        yield Line(REAL, "ends well, the loss falls", told, holds)
        if code != 0:
            print(run.last_words()[-6000:], file=sys.stderr)
            run.kill_all()
            yield Line(EXPORTED, f"{PARAMETERS} True", "nothing to export", False)
            return
        job, target = f"{run.store}/jobs/{run.jobs()[0]}", folder / "exported"
        command = [sys.executable, "-m", "everstep", "checkpoint", "export", job, str(target)]
        done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
        load = [sys.executable, "-c", LOADED, str(target)]
        loaded = subprocess.run(load, capture_output=True, text=True, check=False).stdout.strip()
        told = loaded or done.stderr.strip()[-100:]
        yield Line(EXPORTED, f"{PARAMETERS} True", told, loaded == f"{PARAMETERS} True")


@dataclass(frozen=True)
class Measured:
    """Lines that are measured together."""

    names: tuple[str, ...]
    lines: Callable[[], Iterator[Line]]


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = checkpoint.arguments()
    parser.add_argument("--lines", default="", help="judge only lines with this word")
    parser.add_argument("--list", action="store_true", help="name the lines and end")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--runs", type=int, default=RUNS)
    told = parser.parse_args()
    measured = [
        Measured((CUDA,), cuda),
        Measured((SERIES,), lambda: series(told.kills)),
        Measured((LEFT,), lambda: leftovers(told.runs)),
        Measured((RATIOS,), lambda: (line for line in checkpoint.lines(told) if line.wanted)),
        Measured((REAL, EXPORTED), finetuned),
    ]
    proofs = {name: words for name, words in (WORKS | PROOFS).items() if told.lines in name}
    chosen = [one for one in measured if any(told.lines in name for name in one.names)]
    if told.list:
        print("\n".join([*proofs, *(name for one in chosen for name in one.names)]))
        return

    def lines() -> Iterator[Line]:
        yield from proven_together(PATHS, proofs, only=True)
        for one in chosen:
            yield from one.lines()

    judge(lines())


if __name__ == "__main__":
    main()
