"""What the processes of a data loader do, from their states and stacks."""

import pytest

from everstep.runtime.watch.data_workers import describe, waits_for_data_worker
from everstep.runtime.watch.hang_culprit import ProcessState
from everstep.runtime.watch.stacks import Frame, RankStacks, Thread

LOADER = "/venv/site-packages/torch/utils/data/dataloader.py"
LOOP = Frame("_worker_loop", "/venv/site-packages/torch/utils/data/_utils/worker.py", 340)
PARENT = Frame("<module>", "/home/user/train.py", 30)


def stacks(*frames: Frame) -> RankStacks:
    """A process that is in these calls, the outermost first."""
    return RankStacks(1, (Thread("MainThread", (PARENT, *frames)),))


IDLE = 5, ProcessState("S"), stacks(LOOP, Frame("get", "/usr/lib/python3.11/multiprocessing/queues.py", 113))
LOADS = 6, ProcessState("R"), stacks(LOOP, Frame("load", "/home/user/data.py", 3), Frame("resize", LOADER, 9))
READS = 7, ProcessState("S", call="read", file="/mnt/data/shard"), LOADS[2]
STOPPED = 8, ProcessState("T", call="read", file="/mnt/data/shard"), LOADS[2]
UNKNOWN = 9, ProcessState("S"), RankStacks(1)
OF_LIBRARY = (
    10,
    ProcessState("S"),
    stacks(
        LOOP,
        Frame("fetch", "/venv/site-packages/torch/utils/data/_utils/fetch.py", 50),
        Frame("loader", "/venv/site-packages/torchvision/datasets/folder.py", 250),
    ),
)
WAITS_FOR_DISK = 11, ProcessState("D", call="read", file="/mnt/data/shard"), LOADS[2]
HIDDEN = RankStacks(1, failure="py-spy: Permission Denied")
READS_HIDDEN = 12, ProcessState("S", call="read", file="/mnt/data/shard"), HIDDEN
IDLE_HIDDEN = 13, ProcessState("S", call="read", file="pipe:[77]"), HIDDEN


@pytest.mark.parametrize(
    ("workers", "sentence"),
    [
        ([IDLE, LOADS], "process 6 is in load (data.py:3)"),
        ([READS, IDLE], "process 7 is blocked in read of /mnt/data/shard in load (data.py:3)"),
        ([LOADS, READS, STOPPED], "process 8 is stopped by a signal (SIGSTOP) in load (data.py:3)"),
        ([IDLE, OF_LIBRARY], "process 10 is in loader (folder.py:250)"),
        ([LOADS, WAITS_FOR_DISK], "process 11 is blocked in read of /mnt/data/shard in load (data.py:3)"),
        ([IDLE], "no process of it that was looked at is at work"),
        ([UNKNOWN, IDLE_HIDDEN, READS_HIDDEN], "process 12 is blocked in read of /mnt/data/shard"),
        ([UNKNOWN, IDLE_HIDDEN], "what its processes do is not known"),
        ([UNKNOWN], "what its processes do is not known"),
        ([], "what its processes do is not known"),
    ],
)
def test_the_process_that_does_not_deliver_is_described(
    workers: list[tuple[int, ProcessState, RankStacks]], sentence: str
) -> None:
    assert describe(workers) == sentence
    assert describe(workers[::-1]) == sentence


def test_a_rank_waits_for_such_a_process_only_where_torch_asks_for_its_data() -> None:
    takes = Frame("_BaseDataLoaderIter.__next__", LOADER, 700)
    assert waits_for_data_worker(stacks(takes, Frame("_MultiProcessingDataLoaderIter._try_get_data", LOADER, 1290)))
    assert not waits_for_data_worker(stacks(takes, Frame("load", "/home/user/data.py", 3))), "it loads by itself"
    assert not waits_for_data_worker(RankStacks(1))
