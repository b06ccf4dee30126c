"""`python -m benchmarks.calm --minutes 60`: ordinary training with pauses must raise no alarm.

Two ranks train a small model under `everstep launch`. Pauses that are no faults come by chance, each shorter than the
time limit: a rank waits for data, all evaluate, rank 0 alone evaluates or saves while the others wait for it, a rank
collects garbage or is stopped for a moment. An alarm is a record of a hang in the job's journal.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.harness import ROOT

LIMIT_S = 20
"""Of the hang detection here. Its default is 300 s; pauses last up to half of the limit."""
SCRIPT = """
import os, random, signal, sys, threading, time
import torch
import torch.distributed as dist

until = time.time() + float(sys.argv[1])
dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
together, alone = random.Random(1), random.Random(2 + rank)
pauses = 0

class SlowFile:
    def write(self, data):
        time.sleep(alone.uniform(0, 2))
        return len(data)
    def flush(self): pass

def stop_for(seconds):
    if os.fork() == 0:
        parent = os.getppid()
        os.kill(parent, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(parent, signal.SIGCONT)
        os._exit(0)
    os.wait()

iteration, over = 0, torch.zeros(1)
while not over.item():
    iteration += 1
    model(torch.randn(8, 64)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02 * alone.uniform(0.5, 1.5))
    if alone.random() < 0.001:  # Its data are late.
        time.sleep(alone.uniform(0, LIMIT / 2))
        pauses += 1
    if alone.random() < 0.0005:
        stop_for(alone.uniform(0, 4))
        pauses += 1
    chance = together.random()
    if chance < 0.001:  # All evaluate; some for longer than the limit.
        model.eval()
        time.sleep(together.uniform(0, 1.5 * LIMIT))
        model.train()
        pauses += 1
    elif chance < 0.002:  # Rank 0 alone does; the others wait for it.
        seconds = together.uniform(0, 1.5 * LIMIT)
        if rank == 0:
            model.eval()
            time.sleep(seconds)
            model.train()
        dist.barrier()
        pauses += 1
    elif chance < 0.003:
        if rank == 0:
            torch.save(model.state_dict(), SlowFile())
        dist.barrier()
        pauses += 1
    over.fill_(time.time() > until)
    dist.broadcast(over, 0)
print(f"rank {rank}: {iteration} iterations, {pauses} pauses", flush=True)
"""


@dataclass(frozen=True)
class Calm:
    """What came of it."""

    minutes: float
    code: int
    """Exit code of the launch."""
    lines: tuple[str, ...]
    """What each rank did."""
    alarms: tuple[str, ...]
    """Records of hangs."""
    slow: tuple[str, ...]
    """What was said of slow ranks: on a machine that others use, one may be slow for half a minute indeed."""

    @property
    def holds(self) -> bool:
        """Has it trained to the end without an alarm?"""
        return self.code == 0 and len(self.lines) == 2 and not self.alarms

    def __str__(self) -> str:
        what = "; ".join(self.lines) or f"exit code {self.code}"
        alarms = f"{len(self.alarms)} alarms {' '.join(self.alarms)}".rstrip()
        slow = f"{len(self.slow)} slow ranks named {' '.join(self.slow)}".rstrip()
        return f"{self.minutes:g} min, limit {LIMIT_S} s: {what}; {alarms}; {slow}"


def measure(minutes: float) -> Calm:
    """Train for so long."""
    with tempfile.TemporaryDirectory(prefix="everstep-calm-") as place:
        folder = Path(place)
        (folder / "train.py").write_text(SCRIPT.replace("LIMIT", str(LIMIT_S)))
        command = [
            sys.executable, "-m", "everstep.cli.main", "launch", "--standalone", "--nproc-per-node=2", "--store=store",
            f"--hang-timeout={LIMIT_S}", "train.py", str(minutes * 60),
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        completed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        files = sorted((folder / "store/jobs").glob("*/journal/*"))
        records = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        alarms = [json.dumps(record) for record in records if record["kind"] in ("HangSeen", "HangExplained")]
        slow = [record["detail"] for record in records if record["kind"] == "SlowSeen"]
        lines = sorted(line for line in completed.stdout.splitlines() if line.startswith("rank "))
    return Calm(minutes, completed.returncode, tuple(lines), tuple(alarms), tuple(slow))


def main() -> None:
    """Train, print, exit 1 if there was an alarm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to train (60)")
    calm = measure(parser.parse_args().minutes)
    print(calm)
    sys.exit(0 if calm.holds else 1)


if __name__ == "__main__":
    main()
