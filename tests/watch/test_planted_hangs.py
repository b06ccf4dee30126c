"""Planted hangs in real processes: a plain torchrun script, whose culprit is named before anything is restarted."""

import re

import pytest

from everstep.runtime.job.records import HangSeen, RoundBroken
from everstep.runtime.report.causes import Causes
from tests.launch.launchers import EVERSTEP, Launcher, LaunchOutcome
from tests.watch.named_after import Note, note_seconds, records

SCRIPT = """
import os, signal, sys, threading, time
import torch
import torch.distributed as dist

BEFORE
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())

def planted():
    open(f"planted-{rank}", "w").close()
    PLANTED

for iteration in range(40):
    if iteration == 12 and rank == 1:
        planted()
    model(torch.randn(4, 8)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PAGED_OUT = """
    import mmap
    if os.environ["SWAP"]:
        memory = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.write(os.urandom(64 << 20))
    else:  # Where no swap can be turned on, its pages are read back from a file.
        file = open(f"memory-{rank}", "wb+")
        file.write(os.urandom(64 << 20))
        os.fsync(file.fileno())
        memory = mmap.mmap(file.fileno(), 64 << 20)
    memory.madvise(mmap.MADV_RANDOM)
    while True:
        memory.madvise(21)  # MADV_PAGEOUT
        sum(memory[at] for at in range(0, len(memory), 4096))
"""
SLOW_DISK = """
    import mmap
    with open(os.environ["SLOW_DISK"] + "/cgroup.procs", "w") as group:
        group.write(str(os.getpid()))
    with open("data", "wb") as file:
        file.write(bytes(1 << 20))
        os.fsync(file.fileno())
    file, buffer = os.open("data", os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 20)
    while True: os.preadv(file, [buffer], 0)
"""
NEIGHBOURS = """
    import subprocess
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(5)]
    while True: pass
"""
LOADER = """
    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            WORKER
    next(iter(torch.utils.data.DataLoader(Samples(), num_workers=2, batch_size=None)))
"""
HANGS = {
    "an endless loop": (
        "while True: pass",
        r"rank 1 of 2 never entered all_reduce #\d+; it .*in planted \(train.py:14\)",
    ),
    "never entering a collective": ("threading.Event().wait()", r"rank 1 of 2 never entered .*; it is in planted"),
    "SIGSTOP": ("os.kill(os.getpid(), signal.SIGSTOP)", r"rank 1 of 2 is stopped by a signal \(SIGSTOP\)"),
    "a blocked read": ("os.read(os.pipe()[0], 1)", r"rank 1 of 2 never entered .* blocked in read of a pipe"),
    "a full pipe": (
        "_, end = os.pipe(); [os.write(end, bytes(1 << 16)) for _ in range(1000)]",
        r"rank 1 of 2 never entered .* blocked in write of a pipe",
    ),
    "mismatched order": (
        "dist.broadcast(torch.ones(8), 0)",
        r"rank [01] of 2 waits in (broadcast|all_reduce) #\d+ .*the others in (all_reduce|broadcast)",
    ),
    "a dead data loader worker": (
        "import multiprocessing; multiprocessing.get_context('fork').Pool(1).apply(os._exit, (1,))",
        r"rank 1 of 2 never entered .*; it is in planted",
    ),
    "a data loader worker that is stopped": (
        LOADER.replace("WORKER", "os.kill(os.getpid(), signal.SIGSTOP)"),
        r"rank 1 of 2 never entered .* waits for its data loader in planted .*: process \d+ is stopped by a signal "
        r"\(SIGSTOP\) in .*Samples.__getitem__ \(train.py:18\)",
    ),
    "a data loader worker that is blocked": (
        LOADER.replace("WORKER", "os.read(os.pipe()[0], 1)"),
        r"rank 1 of 2 never entered .* waits for its data loader in planted .*: process \d+ is blocked in read of a "
        r"pipe in .*Samples.__getitem__ \(train.py:18\)",
    ),
    "swapped-out memory": (PAGED_OUT, r"rank 1 of 2 never entered .*; it reads its memory back from disk, \d+ pages"),
    "a slow disk": (
        SLOW_DISK,
        r"rank 1 of 2 .* (waits \d+% of the time for the disk|uninterruptible wait of the kernel \(disk).*in planted",
    ),
    "a busy neighbour": (NEIGHBOURS, r"rank 1 of 2 never entered .*; it waits \d+% of the time for a CPU in planted"),
    "a lock in a user's thread": (
        "lock = threading.Lock(); take = lambda: (lock.acquire(), time.sleep(999)); "
        "threading.Thread(target=take, daemon=True).start(); time.sleep(0.2); lock.acquire()",
        r"rank 1 of 2 never entered .*; it is in planted",
    ),
}
THRESHOLD_S = 4
FLAGS = ("--standalone", "--store=store", "--nproc-per-node=2", f"--hang-timeout={THRESHOLD_S}")


def run(launcher: Launcher, script: str, *flags: str, **more: str) -> LaunchOutcome:
    """The launch of that script, to its end. Capitals are environment."""
    (launcher.folder / "train.py").write_text(script)
    return launcher.wait_for_end(launcher.start(EVERSTEP, *FLAGS, *flags, "train.py", **more))


def assert_named(
    outcome: LaunchOutcome, pattern: str, launcher: Launcher, note: Note, threshold_s: float = THRESHOLD_S
) -> None:
    """The job has failed, and says who hung: before that nothing was started anew. Notes how late it was said."""
    assert outcome.code == 1, outcome.err
    failed = next(line for line in outcome.err.splitlines() if "the job failed" in line)
    assert re.search(pattern, failed), outcome.err
    assert "round 2" not in outcome.err
    note_seconds(note, launcher, launcher.folder / "planted-1", threshold_s)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] if case != "a blocked read" else []) for case in HANGS]
)
def test_the_rank_that_hangs_is_named_before_the_job_fails(
    launcher: Launcher, case: str, request: pytest.FixtureRequest, record_property: Note
) -> None:
    planted, pattern = HANGS[case]
    needed = {SLOW_DISK: "slow_disk", PAGED_OUT: "swap"}.get(planted)
    more = {needed.upper(): request.getfixturevalue(needed)} if needed else {}
    if more.get("SWAP"):
        pattern = rf"{pattern} a second, \d+ MiB are in swap in planted"
    outcome = run(launcher, SCRIPT.replace("PLANTED", planted.strip()).replace("BEFORE", ""), **more)
    assert (launcher.folder / "planted-1").exists()
    assert_named(outcome, pattern, launcher, record_property)


@pytest.mark.long
def test_the_rank_whose_shapes_differ_is_named_where_gloo_ends_it(launcher: Launcher, record_property: Note) -> None:
    """NCCL waits for ever instead: `test_hang_culprit` has that. gloo's words are known where the output is kept."""
    script = SCRIPT.replace("PLANTED", "dist.all_reduce(torch.ones(3))").replace("BEFORE", "")
    outcome = run(launcher, script, "--tee=3")
    assert (launcher.folder / "planted-1").exists()
    assert outcome.code == 1, outcome.err
    journal = records(launcher)
    (broken,) = (record for record in journal if isinstance(record, RoundBroken))
    paragraph = Causes(journal).paragraph(broken, "")
    assert re.search(r"rank [01] .*ranks disagree about a collective", paragraph), paragraph
    note_seconds(
        record_property, launcher, launcher.folder / "planted-1", 0, lambda record: isinstance(record, RoundBroken)
    )


EARLY = {
    "before the process group": (
        "BEFORE",
        r"rank 1 of 2 never reached the point where the others create a process group; it is in planted",
    ),
    "before the first collective": ("AFTER", r"rank 1 of 2 never entered .*; it is in planted"),
}


@pytest.mark.long
@pytest.mark.parametrize("case", EARLY)
def test_a_hang_before_the_first_iteration_is_found_at_the_same_threshold(
    launcher: Launcher, case: str, record_property: Note
) -> None:
    at, pattern = EARLY[case]
    hang = """
def planted():
    open("planted-1", "w").close()
    threading.Event().wait()
if os.environ["RANK"] == "1":
    planted()
"""
    script = SCRIPT.replace("PLANTED", "pass").replace("BEFORE", hang if at == "BEFORE" else "")
    if at == "AFTER":
        script = script.replace("model = ", f"{hang}\nmodel = ")
    outcome = run(launcher, script)
    assert (launcher.folder / "planted-1").exists()
    assert_named(outcome, pattern, launcher, record_property)
    assert "all ranks stood still for 4 s since they were told to start" in outcome.err


SPEC = """
replicaSpecs:
  worker: {replicas: 1, slots: 2}
hang: {policy: fail, timeout: 4, startTimeout: 20}
"""


@pytest.mark.long
def test_a_rank_that_spins_before_the_first_iteration_is_found_at_the_start_timeout(
    launcher: Launcher, record_property: Note
) -> None:
    """It may compile: only a limit for the start tells."""
    spins = """
if os.environ["RANK"] == "1":
    def planted():
        open("planted-1", "w").close()
        while True: pass
    planted()
"""
    (launcher.folder / "spec.yaml").write_text(SPEC)
    outcome = run(launcher, SCRIPT.replace("PLANTED", "pass").replace("BEFORE", spins), "--job-spec=spec.yaml")
    assert (launcher.folder / "planted-1").exists()
    pattern = r"rank 1 of 2 never reached the point where the others create a process group; it .*in planted"
    assert_named(outcome, pattern, launcher, record_property, 20)
    assert "all ranks stood still for 20 s since they were told to start" in outcome.err


RESTORES = """
import os, threading
import torch
import everstep

class Counter:
    def state_dict(self):
        return {"count": 1}
    def load_state_dict(self, state):
        if job.rank == 1:
            open("planted-1", "w").close()
            threading.Event().wait()

job = everstep.init()
state = {"model": torch.nn.Linear(8, 8), "counter": Counter()}
checkpointer = everstep.Checkpointer(state)
begin = checkpointer.load(state)
torch.distributed.barrier()
for iteration in range(begin + 1, 9):
    torch.distributed.all_reduce(torch.ones(8))
    checkpointer.save(iteration, state)
    if iteration == 5 and job.rank == 0 and job.round == 1:
        os._exit(1)
"""


@pytest.mark.long
def test_a_hang_in_a_restore_is_named(launcher: Launcher, record_property: Note) -> None:
    outcome = run(launcher, RESTORES, "--max-restarts=1", "--on-hang=fail")
    assert (launcher.folder / "planted-1").exists()
    assert outcome.code == 1, outcome.err
    assert re.search(r"rank 1 of 2 never .*; it is in Counter.load_state_dict .*phase 'restore'", outcome.err), (
        outcome.err
    )
    note_seconds(record_property, launcher, launcher.folder / "planted-1", THRESHOLD_S)


QUIET = {
    "an evaluation that is only long": "model.eval(); time.sleep(9); dist.barrier(); model.train()",
    "a save that is only long": "torch.save({}, SlowFile()); dist.barrier()",
    "an export after the training": "0; iteration == 12 and spin(9)",
}
PARTS = """
class SlowFile:
    def write(self, data):
        if not hasattr(self, "slept"):
            self.slept = time.sleep(9)
        return len(data)
    def flush(self): pass

def spin(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until: pass
"""


@pytest.mark.long
@pytest.mark.parametrize("case", QUIET)
def test_what_only_takes_long_is_no_hang(launcher: Launcher, case: str) -> None:
    script = SCRIPT.replace("PLANTED", QUIET[case]).replace("iteration == 12 and rank == 1", "iteration == 12")
    outcome = run(launcher, script.replace("BEFORE", PARTS))
    assert (launcher.folder / "planted-1").exists()
    assert outcome.code == 0, outcome.err
    assert "stand still" not in outcome.err


SAVES = """
import os
import torch
from torch.distributed.fsdp import fully_shard
import everstep

job = everstep.init()
state = {"model": fully_shard(torch.nn.Linear(8, 8))}
checkpointer = everstep.Checkpointer(state)
begin = checkpointer.load(state)
for iteration in range(begin + 1, 9):
    torch.distributed.all_reduce(torch.ones(8))
    checkpointer.save(iteration, state)
    if iteration == 5 and "CRASHES" in os.environ:
        checkpointer.flush(5)
        os._exit(1)
checkpointer.finish(state)
"""


@pytest.mark.long
@pytest.mark.parametrize("point", ["keeper.before_put", "keeper.before_fetch"])
def test_a_store_that_is_only_slow_is_no_hang(launcher: Launcher, point: str) -> None:
    """The agent copies. Its workers wait, for the last state to be in the store, or for the one that they start from:
    one rank does, and the other for it."""
    fired, job = launcher.folder / "fired", f"--rdzv-id=slow-{launcher.tmp.name}"
    fired.mkdir()
    if point == "keeper.before_fetch":
        assert run(launcher, SAVES, job, CRASHES="1").code == 1
    faulty = {"EVERSTEP_FAULT": f"{point}=sleep:9", "EVERSTEP_FAULT_DIR": str(fired)}
    outcome = run(launcher, SAVES, job, **faulty)
    assert [path.name for path in fired.iterdir()] == [point]
    assert outcome.code == 0, outcome.err
    assert not any(isinstance(record, HangSeen) for record in records(launcher))


def test_a_start_that_only_takes_long_is_no_hang(launcher: Launcher) -> None:
    loads = (
        "import hashlib\nuntil = time.monotonic() + 9\nwhile os.environ['RANK'] == '1' and time.monotonic() < until:"
    )
    outcome = run(
        launcher, SCRIPT.replace("PLANTED", "pass").replace("BEFORE", f"{loads}\n    hashlib.sha256(bytes(999))")
    )
    assert outcome.code == 0, outcome.err
    assert "stand still" not in outcome.err
