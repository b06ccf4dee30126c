"""What a board says of a script that knows nothing of it."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from everstep.runtime.protocol.worker_link import LOCAL_RANK_VARIABLE
from everstep.runtime.watch import in_worker
from everstep.runtime.watch.board import RECENT, VARIABLE, BoardWriter, read_board
from everstep.runtime.watch.board_fields import Board
from everstep.runtime.watch.find_workers import local_workers
from everstep.runtime.watch.kernel_profile import KernelProfile
from tests.forks import Forks

TRAINS = """
import copy, os, signal, sys, threading, time
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from everstep.runtime.checkpoint.state.stateful import prepare_optimizer
from everstep.runtime.watch import in_worker
from everstep.runtime.watch.board import STACK_SIGNAL, read_board, stack_file
from pathlib import Path

stacks = stack_file(Path(os.environ["EVERSTEP_BOARD"]))
shown = lambda: read_board(Path(os.environ["EVERSTEP_BOARD"]))

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer, other = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(model.parameters(), 0.1)
for _ in range(7):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    other.step()
assert shown().iteration == 7, shown()
assert shown().pace_s > 0
model.eval()
assert shown().phase == "evaluation"
model.train()
assert shown().phase == ""
assert 0 < shown().evaluation_s < 60
teacher = torch.nn.Linear(4, 4).eval()
model.train()
teacher.eval()
assert shown().phase == "", "a model that never trains is no evaluation"
frozen = torch.nn.BatchNorm1d(4)
frozen.eval()
assert shown().phase == "", "a normalization that is frozen is no evaluation"
assert shown().earlier == 0, "SGD does not count its steps"
class Watcher:
    def write(self, data):
        self.phase = shown().phase
        return len(data)
    def flush(self): pass
file = Watcher()
torch.save({"a": 1}, file)
assert file.phase == "torch.save"
assert shown().phase == ""
assert 0 < shown().staging_s < 60
def beside(work):
    staging_s, thread = shown().staging_s, threading.Thread(target=work)
    thread.start()
    thread.join()
    assert shown().staging_s == staging_s, "what is saved beside the training does not keep it"
file = Watcher()
beside(lambda: torch.save({"a": 1}, file))
assert file.phase == ""
class Writer(dcp.FileSystemWriter):
    def prepare_global_plan(self, plans):
        self.phase, self.thread = shown().phase, threading.current_thread()
        return super().prepare_global_plan(plans)
writer, before = Writer(sys.argv[1] + "-dcp"), shown().staging_s
dcp.save({"a": torch.ones(3)}, storage_writer=writer)
assert writer.phase == "torch.save"
assert before < shown().staging_s < 60
assert shown().phase == ""
writer = Writer(sys.argv[1] + "-async")
saving = dcp.async_save({"a": torch.ones(3)}, storage_writer=writer)
assert shown().phase == ""
saving.result()
assert writer.thread is not threading.main_thread()
before = shown().staging_s
save_file({"a": torch.ones(3)}, sys.argv[1] + "-safe")
assert before < shown().staging_s < 60
assert shown().data_s == 0
for _ in torch.utils.data.DataLoader(torch.ones(3)):
    pass
assert 0 < shown().data_s < 60
if os.fork() == 0:
    optimizer.step()
    os._exit(0)
os.wait()
assert shown().iteration == 7, "a child of the script is not the script"
deadline = time.monotonic() + 60
while not shown().entered == shown().completed >= 7 and time.monotonic() < deadline:
    time.sleep(0.05)  # A sample may have been taken while one was under way.
assert shown().entered == shown().completed >= 7, shown()
os.environ.update(RANK="1", WORLD_SIZE="2", EVERSTEP_ROUND="4")
in_worker.begin_round(os.environ)
now = shown()
assert (now.rank, now.world_size, now.round, now.iteration) == (1, 2, 4, 0), now
optimizer.step()
assert shown().iteration == 1, "the process is watched in its next round, too"
adam = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.ones(2, 4)).sum().backward()
    adam.step()
os.environ.update(EVERSTEP_ROUND="5")
in_worker.begin_round(os.environ)
adam.step()
assert (shown().iteration, shown().earlier, shown().number) == (1, 5, 6), "Adam's state counts its steps"
saved = get_optimizer_state_dict(model, adam)
for prepare in (lambda new: None, lambda new: prepare_optimizer(new, "optimizer")):
    in_worker.begin_round(os.environ)
    adam = torch.optim.AdamW(model.parameters())
    model.zero_grad()
    prepare(adam)
    set_optimizer_state_dict(model, adam, copy.deepcopy(saved))
    assert shown().iteration == 0, "a step that makes the state for a restore is no iteration"
    model(torch.ones(2, 4)).sum().backward()
    adam.step()
    assert (shown().iteration, shown().earlier, shown().number) == (1, 6, 7), shown()
dist.destroy_process_group()
stacks.unlink()  # As the agent does before each round.
in_worker.begin_round(os.environ)
signal.raise_signal(STACK_SIGNAL)
assert "most recent call first" in stacks.read_text(), "it writes its stacks in each round"
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "-again", rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(2))
deadline = time.monotonic() + 60
while not shown().entered == shown().completed == 3 and time.monotonic() < deadline:
    time.sleep(0.05)
assert shown().entered == shown().completed == 3, f"collectives of an earlier round do not count: {shown()}"
"""


def test_iterations_phases_and_collectives_are_seen_from_outside(forks: Forks, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAINS)
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "EVERSTEP_ROUND": "3", "EVERSTEP_JOB": "demo"}
    environment = {**place, VARIABLE: str(tmp_path / "board-0")}
    code = forks.run([str(tmp_path / "train.py"), str(tmp_path / "store")], environment, tmp_path / "out")
    assert code == 0, (tmp_path / "out").read_text()
    board = read_board(tmp_path / "board-0")
    assert board is not None
    assert (board.rank, board.world_size, board.round, board.job) == (1, 2, 5, "demo")


class Optimizer:
    """One that has no state yet."""

    def __init__(self) -> None:
        self.state = dict[str, object]()


def test_when_the_first_optimizer_is_gone_the_next_one_that_steps_counts(tmp_path: Path) -> None:
    path = tmp_path / "board-0"
    watch = in_worker._Watch(BoardWriter(str(path), Board(7, 0, 1, 0, 1)), KernelProfile(path))

    def iteration_after(*optimizers: Optimizer) -> int:
        for optimizer in optimizers:
            watch._after_step(optimizer)
        board = read_board(path)
        assert board is not None
        return board.iteration

    first, second, third = Optimizer(), Optimizer(), Optimizer()
    assert iteration_after(first, second, first, second) == 2
    watch.restored = 40  # Would be taken for what earlier processes made if the count began again.
    del first
    assert iteration_after(third, second, third, second) == 4
    board = read_board(path)
    assert board is not None
    assert board.earlier == 0


def test_a_board_has_the_local_rank_on_the_node_also_where_each_worker_is_told_0(tmp_path: Path) -> None:
    path = tmp_path / "board-1"
    seat = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "EVERSTEP_ROUND": "3", VARIABLE: str(path)}
    for environment, local_rank in ((seat, 0), ({**seat, LOCAL_RANK_VARIABLE: "1"}, 1)):
        assert in_worker.make_board(environment) is not None
        board = read_board(path)
        assert board is not None
        assert (board.rank, board.local_rank) == (5, local_rank)


def test_a_board_reads_back_what_was_written(tmp_path: Path) -> None:
    writer = BoardWriter(str(tmp_path / "board-1"), Board(7, 5, 8, 1, 2, "a job", store="s3://bucket/prefix"))
    writer.add_spent(staging_s=0.5, evaluation_s=1.0)
    writer.begin_counting(40, 11.0)
    writer.set_phase("evaluation", 10.0)
    writer.finish_iteration(0.5, 11.0)
    writer.finish_iteration(0.7, 12.0)
    writer.set_collectives(9, 8, "all_reduce [3]", 13.0)
    writer.add_data(0.25)
    writer.add_data(0.25)
    writer.add_spent(staging_s=1.5, evaluation_s=2.0)
    writer.add_tokens(512)
    assert read_board(tmp_path / "board-1") == Board(
        7, 5, 8, 1, 2, "a job", 2, 3, 12.0, "evaluation", 9, 8, 1, 1, 13.0, "all_reduce [3]",
        (0.0, 0.5, 0.7, *[0.0] * (RECENT - 3)),
        0.5, 2.0, 3.0, 512.0, 40, 12.0, "s3://bucket/prefix", 11.0, 0.5, 1.0, "",
    )  # fmt: skip


def test_what_the_script_says_that_it_does_is_shown_where_nothing_else_is_seen(tmp_path: Path) -> None:
    writer = BoardWriter(str(tmp_path / "board-0"), Board(7, 0, 1, 0, 1))

    def shown() -> str:
        board = read_board(tmp_path / "board-0")
        assert board is not None
        return board.doing

    writer.set_named("tokenizing the second half of the corpus")
    assert shown() == "tokenizing the second half of th"
    writer.set_phase("torch.save", 1.0)
    assert shown() == "torch.save"
    writer.set_phase("", 2.0)
    writer.set_named("data")
    assert shown() == "data"
    writer.set_named("")
    assert shown() == ""


def test_what_is_no_board_is_none(tmp_path: Path) -> None:
    BoardWriter(str(tmp_path / "board-0"), Board(7, 0, 1, 0, 1))
    whole = (tmp_path / "board-0").read_bytes()
    for content in (b"", whole[:8], whole[:-1], bytes(len(whole)), b"EVSBRD99" + whole[8:]):
        (tmp_path / "board-1").write_bytes(content)
        assert read_board(tmp_path / "board-1") is None, content


def put_board(folder: Path, pid: int, rank: int = 0) -> Path:
    """The board of a process, in a node's folder."""
    folder.mkdir()
    BoardWriter(str(folder / "board-0"), Board(pid, rank, 2, 0, 1, "demo"))
    return folder / "board-0"


def test_boards_of_processes_that_have_ended_do_not_count(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    for number, pid in enumerate((process.pid, os.getpid())):
        put_board(tmp_path / f".everstep-0123456789ab-worker-0-{number}-x1y2z3__", pid, number)
    (worker,) = local_workers(tmp_path)
    assert (worker.node, worker.board.rank) == ("worker-0-1", 1)


def test_what_others_put_where_boards_are_looked_for_is_no_worker(tmp_path: Path) -> None:
    board = put_board(tmp_path / ".everstep-x", os.getpid())
    for number, pid in enumerate((0, -1, 1 << 40)):
        put_board(tmp_path / f".everstep-0123456789ab-worker-0-{number}-x1y2z3__", pid)
    folder = tmp_path / ".everstep-0123456789ab-worker-0-9-x1y2z3__"
    folder.mkdir()
    os.mkfifo(folder / "board-0")
    (folder / "board-1").symlink_to(board)
    (folder / "board-2").mkdir()
    assert local_workers(tmp_path) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("is_folder", [True, False])
def test_a_board_of_another_user_than_its_processs_is_forged(is_folder: bool, tmp_path: Path) -> None:
    board = put_board(tmp_path / ".everstep-0123456789ab-worker-0-0-x1y2z3__", os.getpid())
    assert len(local_workers(tmp_path)) == 1
    os.chown(board.parent if is_folder else board, 65534, 65534)
    assert local_workers(tmp_path) == []


def test_of_two_workers_with_one_rank_the_later_rounds_counts(tmp_path: Path) -> None:
    for node, rank, round_ in ((0, 0, 2), (1, 1, 1), (2, 1, 2)):
        folder = tmp_path / f".everstep-0123456789ab-worker-{node}-0-x1y2z3__"
        folder.mkdir()
        BoardWriter(str(folder / "board-0"), Board(os.getpid(), rank, 2, 0, round_, "demo"))
    assert [(worker.node, worker.board.round) for worker in local_workers(tmp_path)] == [
        ("worker-0-0", 2), ("worker-2-0", 2)
    ]  # fmt: skip


class StepOnDevice:
    """The step counter of an optimizer whose step is in a CUDA graph."""

    is_cuda = True

    def __int__(self) -> int:
        return 8


@pytest.mark.parametrize(("captures", "earlier"), [(False, 7), (True, 0)])
def test_a_number_on_the_device_is_not_read_while_a_graph_is_captured(
    captures: bool, earlier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = SimpleNamespace(is_current_stream_capturing=lambda: captures)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    optimizer = SimpleNamespace(state={"weight": {"step": StepOnDevice()}})
    assert in_worker._earlier_steps(optimizer) == earlier
