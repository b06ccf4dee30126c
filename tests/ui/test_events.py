"""What the page says has happened to a job."""

from everstep.cli.ui.snapshot import events
from everstep.runtime.job import records as job
from everstep.runtime.protocol.rounds import Member, Round
from everstep.runtime.report import history
from everstep.runtime.watch.slow_ranks import SlowPart


def test_a_fault_has_its_first_cause_and_a_slow_rank_is_told_with_what_is_slow() -> None:
    round_ = Round(1, {"worker": (Member("worker-0-0", "h", "", 1),)}, "", 1, None, "all joined")
    slow = "rank 1 is slow: host: disk: it waits 0.1 s longer for it"
    fault = job.WorkerFaulted(
        time=30, node="worker-0-0", round=1, rank=0, local_rank=0, exit_code=1, iteration=3,
        reason=job.Reason.USER_ERROR, error="torch.OutOfMemoryError: CUDA out of memory.",
    )  # fmt: skip
    records: list[job.Record] = [
        job.RoundFormed(time=10, round=round_),
        job.SlowSeen(time=20, round=1, node="worker-0-0", ranks=(1,), part=SlowPart.DISK, detail=slow),
        fault,
        job.RoundBroken(time=31, round=1, reason=job.Reason.USER_ERROR, detail="", node="worker-0-0"),
    ]
    shown = {event["kind"]: event for event in events(history(records, []))}
    assert (shown["slow"]["time"], shown["slow"]["text"]) == (20, slow)
    assert (
        "First, rank 0 on worker-0-0 ended (exit code 1) at iteration 3: out of GPU memory." in shown["fault"]["cause"]
    )
