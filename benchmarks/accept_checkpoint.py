"""`make accept-checkpoint`: every promise about checkpoints: wanted, measured, holds or not.

What tests prove is proven by the tests named in the line; ratios (`benchmarks.checkpoint`) and the fine-tuning of a
real model are measured here.
"""

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import checkpoint
from benchmarks.acceptance import Line, judge, proven
from benchmarks.main_job import default_run
from tests.harness import ROOT

CHECKPOINT, STORE, SURVIVAL = "tests/checkpoint", "tests/store", "tests/survival"
KEEPER, SHARDED, COPIES, FRAMEWORKS, ALONE = (
    f"{CHECKPOINT}/test_{name}.py" for name in ("keeper", "sharded", "copies", "frameworks", "alone")
)
CONTRACT, WIRE = f"{STORE}/test_store_contract.py", f"{STORE}/test_s3_on_a_wire.py"
LOADED = """
import sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(sum(p.numel() for p in model.parameters()), bool(torch.isfinite(model(torch.tensor([[1, 2, 3]])).logits).all()))
"""
PARAMETERS = 134_515_008
"""Of SmolLM2-135M."""


def works() -> Iterator[Line]:
    """The seven things that work at the end."""
    yield proven("1 save blocks for a copy, load restores in place, under everstep launch", KEEPER,
                 f"{CHECKPOINT}/test_restoring.py", "tests/launch/test_resuming.py")  # fmt: skip
    yield proven("1 a plain python script keeps its own, on one rank and on several", "tests/training", ALONE,
                 "-k", "without_agent or alone")  # fmt: skip
    yield proven("2 plain and DDP state", f"{CHECKPOINT}/test_restoring.py", f"{CHECKPOINT}/test_walk.py")
    yield proven("2 FSDP2 and tensor parallelism, no all-gather in save; 2 -> 3 -> 1, another mesh", SHARDED)
    yield proven("2 FSDP1's SHARDED_STATE_DICT, loaded at another world size", FRAMEWORKS, "-k", "fsdp1")
    yield proven("2 Hugging Face Trainer: a callback; killed, it goes on", FRAMEWORKS, "-k", "trainer")
    yield proven("2 DLRover's names and their meaning", FRAMEWORKS, "-k", "dlrover or path")
    yield proven("3 own memory -> peer -> store; the plan says from where and why; a wrong digest falls through",
                 KEEPER, COPIES, "-k", "memory or peer or source or flipped")  # fmt: skip
    yield proven("4 one contract for the directory and a real MinIO; create is atomic", CONTRACT)
    yield proven("4 parts, in parallel, bounded memory, retries, bandwidth limit", WIRE, f"{STORE}/test_pace.py")
    yield proven("4 the usual variables, CA file; what is wrong is one line", f"{STORE}/test_s3_store.py")
    yield proven("4 the whole main job on MinIO", f"{STORE}/test_main_job_on_s3.py")
    yield proven("5 when workers die the newest state is persisted unasked", KEEPER, "-k", "unasked")
    yield proven("5 every N iterations, or --checkpoint-overhead; in log and report", f"{CHECKPOINT}/test_cadence.py",
                 KEEPER, "tests/report", "-k", "cadence or interval or overhead")  # fmt: skip
    yield proven("6 --model s3://..., and smollm2 converted once", "tests/model")
    yield proven("7 keeps the last N and every Mth; debris", f"{CHECKPOINT}/test_retention.py", KEEPER,
                 "-k", "retention or debris")  # fmt: skip
    yield proven("7 everstep checkpoint ls, verify, export", "tests/face/test_checkpoint_command.py")
    yield proven("7 memory arithmetic at the start; /dev/shm too small is told with the mend", CHECKPOINT,
                 "-k", "arithmetic")  # fmt: skip
    yield proven("7 NaN after a restore steps back", "tests/training/test_diverged.py",
                 "tests/job/test_job_rules.py", "-k", "diverged or no_number")  # fmt: skip


def proofs() -> Iterator[Line]:
    """Faults."""
    yield proven("every interleaving: some state is held whole, a restore is of one, a manifest names what is there",
                 f"{CHECKPOINT}/test_copies_properties.py", f"{CHECKPOINT}/test_slots.py")  # fmt: skip
    yield proven("the contract on a store that is slow, truncates, hides its success", CONTRACT, "-k", "wire")
    yield proven("ambiguous success, 412 after own success, truncated, full: S3 on a bad wire", WIRE)
    yield proven("saves and restores on a store that refuses, lies about its success, is full, slow, truncates",
                 f"{CHECKPOINT}/test_on_a_bad_store.py", KEEPER, "-k", "bad_store or refused or slow")  # fmt: skip
    yield proven("the master on such a store; a list that lags behind", "tests/master", "-k", "troubled or lags")
    yield proven("a bit flipped in memory, a peer's copy, the store's object: found, named, the next tier used",
                 KEEPER, COPIES, f"{CHECKPOINT}/test_on_a_bad_store.py", "-k", "flipped or no_source")  # fmt: skip
    yield proven("SIGKILL at every named point, DDP and FSDP2", f"{CHECKPOINT}/test_save_kill_restore.py", SHARDED)
    yield proven("SIGKILL at random moments of save and persist: never an empty, never a mixed load",
                 f"{CHECKPOINT}/test_random_kills.py", ALONE, "-k", "killed")  # fmt: skip
    yield proven("DISK after MEMORY and MEMORY after DISK all commit", FRAMEWORKS, "-k", "memory_and_disk")
    yield proven("/dev/shm holds nothing of ours after runs, killed or not", CHECKPOINT, SURVIVAL,
                 "-k", "leaves_no or leaves_nothing or outlives or debris")  # fmt: skip
    yield proven("on CUDA: stall of an overlapped save, bit-exact restore", f"{CHECKPOINT}/test_cuda.py")


def bad_input() -> Iterator[Line]:
    """What is refused."""
    yield proven("an unsupported object is named by its key path", f"{CHECKPOINT}/test_layout.py", "-k", "key_path")
    yield proven("a store that ignores If-None-Match is refused at the start", WIRE, "-k", "if_none_match")
    yield proven("another model's checkpoint: at most 10 keys of a kind, nothing loaded",
                 f"{CHECKPOINT}/test_restoring.py", "-k", "another_model")  # fmt: skip


def finetuned() -> Iterator[Line]:
    """A real model, through the pipeline, and out again."""
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as name:
        folder = Path(name)
        ran = default_run(folder, "--model", "smollm2", "--nodes", "1", "--iterations", "20")
        job = next((folder / "runs" / "store" / "jobs").iterdir())
        first, last = losses(job)
        told = f"exit code {ran.exit_code}, {ran.seconds:.0f} s, {ran.peak_bytes / 1e9:.1f} GB"
        yield Line("6 smollm2: 20 iterations by the pipeline", "ends well, the loss falls",
                   f"{told}, loss {first:.2f} -> {last:.2f}", ran.exit_code == 0 and last < first)  # fmt: skip
        target = folder / "exported"
        command = [sys.executable, "-m", "everstep", "checkpoint", "export", str(job), str(target)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        load = [sys.executable, "-c", LOADED, str(target)]
        loaded = subprocess.run(load, capture_output=True, text=True, check=False).stdout.strip()
        told = loaded or done.stderr.strip()[-100:]
        yield Line("7 that model exported, loaded by transformers", f"{PARAMETERS} True", told,
                   loaded == f"{PARAMETERS} True")  # fmt: skip


def losses(job: Path) -> tuple[float, float]:
    """Mean loss of a job's first five iterations, and of its last five."""
    lines = [json.loads(line) for path in sorted(job.glob("telemetry/*")) for line in path.read_text().splitlines()]
    found = [line["loss"] for line in lines if "loss" in line]
    return statistics.mean(found[:5]), statistics.mean(found[-5:])


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    told = checkpoint.arguments().parse_args()
    known = checkpoint.cases(told.mib, told.large_mib)
    measured = checkpoint.lines([known[name] for name in told.only or known], told.rounds)
    judge(itertools.chain(works(), proofs(), bad_input(), (line for line in measured if line.wanted), finetuned()))


if __name__ == "__main__":
    main()
