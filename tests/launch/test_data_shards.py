"""`for shard in everstep.shards(...)` under `everstep launch`, with real workers, one of them slow and one killed."""

import json

import pytest

from tests.launch.launchers import EVERSTEP, Launcher

pytest.importorskip("torch")

SCRIPT = """
import json, os, signal, sys, time
import everstep

job = everstep.init()
for shard in everstep.shards([f"file-{number}" for number in range(20)], epochs=2, shuffle=True, seed=1):
    if job.round == 1 and job.rank == 0 and shard.epoch == 1:
        print(f"dies in {shard.number}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3 if job.rank == 1 else 0.02)
    with open(f"done-{job.round}-{job.rank}.jsonl", "a") as file:
        file.write(json.dumps([shard.epoch, shard.number, shard.item]) + "\\n")
"""


@pytest.mark.long
def test_a_killed_workers_shard_is_done_by_another_and_a_slow_worker_does_fewer(launcher: Launcher) -> None:
    (launcher.folder / "train.py").write_text(SCRIPT)
    started = launcher.start(
        EVERSTEP, "--standalone", "--nproc-per-node=2", "--max-restarts=2", "train.py", name="a", OMP_NUM_THREADS="1"
    )
    outcome = launcher.wait_for_end(started, "a")
    assert outcome.code == 0, outcome
    assert "dies in" in outcome.out, "the fault"
    lines_by_file: dict[str, list[tuple[int, int]]] = {}
    for path in sorted(launcher.folder.glob("done-*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert all(item == f"file-{number}" for _, number, item in lines)
        lines_by_file[path.stem] = [(epoch, number) for epoch, number, _ in lines]
    each = [shard for shards in lines_by_file.values() for shard in shards]
    assert set(each) == {(epoch, number) for epoch in (0, 1) for number in range(20)}
    assert len(each) <= 41, "only the slow worker may have written a shard down that it could not report"
    assert len(lines_by_file["done-1-1"]) < len(lines_by_file["done-1-0"])
    first = [number for epoch, number in lines_by_file["done-1-0"] if epoch == 0]
    assert first != sorted(first), "shuffled"


SAVES_SELDOM = """
import os, signal
import torch
import everstep

job = everstep.init()
state = {"total": torch.zeros(1, dtype=torch.int64), "done": torch.zeros(1, dtype=torch.int64)}
checkpointer = everstep.Checkpointer(state)
print("round", job.round, "from", checkpointer.load(state), flush=True)
for shard in everstep.shards(30, shuffle=True):
    state["total"] += shard.number
    state["done"] += 1
    done = int(state["done"])
    if done == 10 + job.round and job.round < 4:
        print(f"dies with {done} done", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if done % 10 == 0:
        checkpointer.save(done, state)
checkpointer.finish(state)
print("total", int(state["total"]), "of", int(state["done"]), flush=True)
"""


@pytest.mark.long
def test_shards_that_no_saved_state_includes_come_again_whenever_their_worker_dies(launcher: Launcher) -> None:
    """Twice it dies with shards that it has done since the state was restored, and none saved."""
    (launcher.folder / "train.py").write_text(SAVES_SELDOM)
    outcome = launcher.wait_for_end(
        launcher.start(EVERSTEP, "--standalone", "--max-restarts=5", "train.py", OMP_NUM_THREADS="1")
    )
    assert outcome.code == 0, outcome
    lines = outcome.lines()
    assert [line for line in lines if line.startswith("dies")] == [f"dies with {n} done" for n in (11, 12, 13)]
    assert [line for line in lines if line.startswith("round")] == ["round 1 from 0", *(
        f"round {number} from 10" for number in (2, 3, 4)
    )]  # fmt: skip
    assert f"total {sum(range(30))} of 30" in lines


WITHOUT_TORCH = """
import os, sys
import everstep

for shard in everstep.shards(10):
    print("shard", shard.item, "rank", os.environ["RANK"])
assert ("torch" in sys.modules) == bool(sys.argv[1:])
"""


@pytest.mark.long
@pytest.mark.parametrize("is_there", [False, True])
def test_a_script_that_does_not_use_torch_takes_shards(launcher: Launcher, is_there: bool) -> None:
    """The train step's nodes import torch for all scripts."""
    (launcher.folder / "train.py").write_text(WITHOUT_TORCH)
    words = ["--preload=everstep.training", "train.py", "there"] if is_there else ["train.py"]
    outcome = launcher.wait_for_end(launcher.start(EVERSTEP, "--standalone", "--nproc-per-node=2", *words))
    assert outcome.code == 0, outcome
    numbers_taken = [int(line.split()[1]) for line in outcome.lines() if line.startswith("shard ")]
    assert sorted(numbers_taken) == list(range(10))
