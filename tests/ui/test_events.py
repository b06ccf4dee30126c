"""What the page says has happened to a job."""

from everstep.cli.ui.snapshot import events, snapshot
from everstep.cli.ui.sources import Entry, OpenedRun
from everstep.runtime.job import records as job
from everstep.runtime.protocol.rounds import Member, Round
from everstep.runtime.report import Run, history
from everstep.runtime.watch.slow_ranks import SlowPart


def test_first_causes_slow_ranks_and_earlier_ends_are_told() -> None:
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
    records += [
        job.JobEnded(time=40, result=job.JobResult.STOPPED, reason="a user stopped it", exit_code=0),
        job.JobReopened(time=50),
    ]
    shown = {event["kind"]: event for event in events(history(records, []))}
    assert (shown["slow"]["time"], shown["slow"]["text"]) == (20, slow)
    assert (
        "First, rank 0 on worker-0-0 ended (exit code 1) at iteration 3: out of GPU memory." in shown["fault"]["cause"]
    )
    assert shown["end"]["text"] == "the job stopped at iteration 0, and was started again"
    assert shown["end"]["more"] == "a user stopped it"


def test_after_a_rollback_the_figures_are_those_of_the_newest_round() -> None:
    rounds = {1: range(1, 141), 2: range(101, 106)}
    lines = [
        {"time": 10.0 * number + iteration, "round": number, "iteration": iteration, "tokens": 64.0 * number,
         "loss": 1.0 * number, "seconds": 1.0 / number}
        for number, iterations in rounds.items()
        for iteration in iterations
    ]  # fmt: skip
    run = Run("r", jobs={"train": history([], lines)})
    (shown,) = snapshot(OpenedRun(run, None, Entry("here", "r", "Running", 1.0, 0.0, "")), 200.0)["jobs"]
    assert (shown["iteration"], shown["loss"]) == (105, 2.0)
    assert shown["throughput"] == (15 * 64 + 5 * 128) / (15 + 5 / 2)
    assert shown["pace"] == 1.0
    assert [point[0] for point in shown["points"]] == [*range(1, 141)], "the curve keeps the rest of the round before"
