"""A slow rank in real processes: named with its slow part, by the launcher meanwhile and by `everstep top`."""

import re
import subprocess
import sys

import pytest

from everstep.runtime.agent.pace_watch import WINDOW_S
from everstep.runtime.job.records import Record, SlowSeen
from everstep.runtime.watch.slow_ranks import SlowPart
from tests.launch.launchers import EVERSTEP, Launcher, until
from tests.watch.named_after import Note, note_seconds

SCRIPT = """
import mmap, os, subprocess, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, slow = dist.get_rank(), dist.get_rank() == 1
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())

def spin(cpu_s):
    until = time.thread_time() + cpu_s
    while time.thread_time() < until: pass

PLANTED
for iteration in range(100_000):
    model(torch.randn(4, 8)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    work()
    if iteration == 5:
        open("trains", "w").close()
"""
PLANTED = {
    SlowPart.COMPUTE: "work = lambda: time.sleep(0.15 if slow else 0.05)",
    SlowPart.DATA: """
class Samples(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            time.sleep(0.15 if slow else 0.05)
            yield 1
loader = iter(torch.utils.data.DataLoader(Samples(), batch_size=None))
work = lambda: next(loader)
""",
    SlowPart.STAGING: """
class File:
    def write(self, data):
        time.sleep(0.01 if slow else 0.001)
        return len(data)
    def flush(self): pass
def work():
    torch.save(model.state_dict(), File())
    time.sleep(0.02)
""",
    SlowPart.CPU: """
if slow:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(5)]
work = lambda: (time.sleep(0.05), spin(0.02 if slow else 0))
""",
    SlowPart.DISK: """
buffer = mmap.mmap(-1, 1 << 20)
if slow:
    with open(os.environ["SLOW_DISK"] + "/cgroup.procs", "w") as group:
        group.write(str(os.getpid()))
    with open("data", "wb") as file:
        file.write(bytes(1 << 20))
        os.fsync(file.fileno())
    file = os.open("data", os.O_RDONLY | os.O_DIRECT)
def work():
    time.sleep(0.02)
    if slow:
        os.preadv(file, [buffer], 0)
""",
    SlowPart.MEMORY: """
if slow and os.environ["SWAP"]:
    memory = mmap.mmap(-1, 32 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(os.urandom(32 << 20))
elif slow:  # Where no swap can be turned on, its pages are read back from a file.
    file = open("memory", "wb+")
    file.write(os.urandom(32 << 20))
    os.fsync(file.fileno())
    memory = mmap.mmap(file.fileno(), 32 << 20)
if slow:
    memory.madvise(mmap.MADV_RANDOM)
def work():
    time.sleep(0.02)
    if slow:
        memory.madvise(21)  # MADV_PAGEOUT
        sum(memory[at] for at in range(0, len(memory), 4096))
""",
}


def wait_until_named(launcher: Launcher, part: SlowPart, note: Note, *flags: str, **more: str) -> None:
    """Launch three ranks, until the second is named with what of it is slow. Notes how late it was.

    Beside load another rank may be slow, too, or this one in another way.
    """
    (launcher.folder / "train.py").write_text(SCRIPT.replace("PLANTED", PLANTED[part]))
    launcher.start(EVERSTEP, "--standalone", "--nproc-per-node=3", *flags, "train.py", **more)
    pattern = rf"rank 1 is slow, .* wait for it: {part.value}: "
    until(lambda: re.search(pattern, launcher.text("node", "err")), lambda: launcher.text("node", "err"))

    def names(record: Record) -> bool:
        return isinstance(record, SlowSeen) and (record.ranks[0], record.part) == (1, part)

    note_seconds(note, launcher, launcher.folder / "trains", WINDOW_S, names)


@pytest.mark.long
@pytest.mark.parametrize("part", [part for part in PLANTED if part != SlowPart.COMPUTE])
def test_the_rank_that_the_others_wait_for_is_named_with_what_of_it_is_slow(
    launcher: Launcher, part: SlowPart, request: pytest.FixtureRequest, record_property: Note
) -> None:
    needed = {SlowPart.DISK: "slow_disk", SlowPart.MEMORY: "swap"}.get(part)
    more = {needed.upper(): request.getfixturevalue(needed)} if needed else {}
    wait_until_named(launcher, part, record_property, **more)


@pytest.mark.long
def test_the_rank_that_takes_three_times_as_long_is_named_and_top_names_it_too(
    launcher: Launcher, record_property: Note
) -> None:
    job = f"slow-{launcher.tmp.name}"
    wait_until_named(launcher, SlowPart.COMPUTE, record_property, "--store=store", f"--rdzv-id={job}")
    command = [sys.executable, "-m", "everstep.cli.main", "top", job, "--times", "1", "--every", "8"]
    top_output = subprocess.run(command, capture_output=True, text=True, check=True, env=launcher.environment({}))
    assert re.search(r"rank 1 is slow, 0\.\d+ s of its own per iteration", top_output.stdout), top_output.stdout
