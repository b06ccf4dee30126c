"""What happened in a job, from its records and telemetry."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.job import records as job
from everstep.runtime.protocol.holdings import Restore
from everstep.runtime.protocol.rounds import Member, Round
from everstep.runtime.report.charts import loss_chart
from everstep.runtime.report.history import Point, _PointsByRound, history
from everstep.runtime.watch.slow_ranks import SlowPart


def round_formed(time: float, number: int, iteration: int | None = None) -> job.RoundFormed:
    restore = None if iteration is None else Restore(number - 1, iteration, (), "newest")
    member = Member("worker-0-0", "local-0", "127.0.0.1:1", 1)
    return job.RoundFormed(time=time, round=Round(number, {"worker": (member,)}, "127.0.0.1", 1, restore, "all joined"))


def round_broken(time: float, number: int, iteration: int = 0) -> job.RoundBroken:
    return job.RoundBroken(
        time=time, round=number, reason=job.Reason.KILLED, detail="", node="worker-0-0", iteration=iteration
    )


def fault(time: float, died: float) -> job.WorkerFaulted:
    return job.WorkerFaulted(
        time=time, node="worker-0-0", round=1, rank=1, local_rank=1, exit_code=-9, iteration=7,
        reason=job.Reason.KILLED, died=died,
    )  # fmt: skip


def at(time: float, number: int, iteration: int, **more: object) -> dict[str, object]:
    return {"v": 1, "time": time, "round": number, "iteration": iteration, "rank": 0, "loss": 1.0, **more}


def test_a_restart_costs_from_the_death_to_the_first_later_iteration() -> None:
    records = [round_formed(1, 1), fault(10.2, 10.0), round_broken(10.3, 1, 7), round_formed(10.4, 2, 5)]
    lines = [at(8, 1, 6), at(9, 1, 7), at(11, 2, 6), at(12, 2, 7), at(13.5, 2, 8), at(15, 2, 9)]
    (restart,) = history(records, lines).restarts
    assert restart.time == 10.0
    assert restart.seconds == 3.5
    assert restart.lost == 2
    assert restart.what == "rank 1 on worker-0-0 (signal 9)"


def test_a_hang_costs_from_the_last_progress_on() -> None:
    hung = job.RoundBroken(time=22, round=1, reason=job.Reason.HANG, detail="all ranks stood still", iteration=7)
    records = [round_formed(1, 1), job.HangSeen(time=20, round=1, still_s=10), hung, round_formed(22.5, 2, 7)]
    (restart,) = history(records, [at(9, 1, 7), at(24, 2, 8)]).restarts
    assert (restart.time, restart.seconds, restart.lost) == (10, 14, 0)


def test_what_nobody_saw_happen_costs_from_when_the_next_iteration_was_due() -> None:
    lost = job.RoundBroken(time=40, round=1, reason=job.Reason.SUSPECTED, detail="no answer", iteration=7)
    lines = [at(second, 1, second - 1, seconds=1.0) for second in range(3, 9)]
    after = [at(44, 2, 8, seconds=1.0)]
    (restart,) = history([round_formed(1, 1), lost, round_formed(42, 2, 7)], lines + after).restarts
    assert (restart.time, restart.seconds, restart.lost) == (9, 35, 0)
    (later,) = history(
        [round_formed(1, 1), msgspec.structs.replace(lost, iteration=9), round_formed(42, 2, 9)], lines
    ).restarts
    assert later.time == 11, "telemetry of two more iterations was lost"


def test_a_script_that_went_on_from_its_own_file_did_not_begin_again() -> None:
    records = [round_formed(1, 1), round_broken(10, 1), round_formed(11, 2)]
    for newest, start in ((41, "iteration 40 from the script's own state"), (1, "from the beginning")):
        (restart,) = history(records, [at(9, 1, 44), at(12, 2, newest)]).restarts
        assert restart.decision == f"round 2, 1 node, {start}"


def test_the_costs_of_a_fault_and_of_the_hang_that_follows_it_do_not_overlap() -> None:
    hung = job.RoundBroken(time=60, round=2, reason=job.Reason.HANG, detail="all ranks stood still", iteration=6)
    records = [round_formed(1, 1), round_broken(10, 1, 7), round_formed(11, 2, 5)]
    records += [job.HangSeen(time=55, round=2, still_s=35), hung, round_formed(61, 3, 5)]
    first, second = history(records, [at(9, 1, 7), at(19, 2, 6), at(70, 3, 8)]).restarts
    assert (first.time, first.seconds) == (10, 10)
    assert (second.time, second.seconds) == (20, 50)


def test_a_node_that_fell_silent_is_the_cause_of_errors_that_only_echo_it() -> None:
    error = "RuntimeError: [gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:36228: Connection reset by peer."
    echo = msgspec.structs.replace(fault(10.2, 10.0), exit_code=1, reason=job.Reason.USER_ERROR, error=error)
    own = msgspec.structs.replace(echo, error="ValueError: x")
    silent = job.NodeSuspected(time=11, node="worker-1-0", round=1, by=("worker-0-0",))
    restarts = [
        history([round_formed(1, 1), record, round_broken(10.3, 1, 7), silent], []).restarts[0]
        for record in (echo, own)
    ]
    assert [restart.node for restart in restarts] == ["worker-1-0", "worker-0-0"]
    assert (restarts[0].what, restarts[0].reason) == ("node worker-1-0", "silent to its neighbours")
    assert restarts[0].cause.startswith("First, node worker-1-0 fell silent")
    assert "rank 1 on worker-0-0: the connection to another rank broke" in restarts[0].cause
    assert restarts[1].cause.startswith("First, rank 1 on worker-0-0 ended")


def test_the_cause_says_which_ranks_of_the_node_failed_and_an_older_record_does_not() -> None:
    failed, older = msgspec.structs.replace(fault(10.2, 10.0), failed=(0, 1, 3)), fault(10.2, 10.0)
    causes = [
        history([round_formed(1, 1), record, round_broken(10.3, 1, 7)], []).restarts[0].cause
        for record in (failed, msgspec.json.decode(_without_failed(older), type=job.WorkerFaulted))
    ]
    assert "Ranks 0-1,3 had errors of their own." in causes[0]
    assert "of their own" not in causes[1]


def _without_failed(record: job.WorkerFaulted) -> bytes:
    fields = msgspec.to_builtins(record)
    del fields["failed"]
    return msgspec.json.encode(fields)


def disconnected(time: float) -> job.RoundBroken:
    detail = "rank 0 on worker-0-0 lost its connection to another rank: RuntimeError: Connection closed by peer"
    return job.RoundBroken(time=time, round=1, reason=job.Reason.DISCONNECTED, detail=detail, iteration=7)


def test_failed_connections_are_the_cause_while_nobody_has_told_another() -> None:
    (restart,) = history([round_formed(1, 1), disconnected(10.3)], []).restarts
    assert (restart.reason, restart.node) == ("connections failed", "")
    assert restart.what.startswith("rank 0 on worker-0-0 lost its connection")
    assert restart.cause.startswith("Round 1 ended, connections failed: rank 0 on worker-0-0 lost its connection")


def test_a_death_that_is_told_after_failed_connections_is_their_cause() -> None:
    (restart,) = history([round_formed(1, 1), disconnected(10.3), fault(10.9, 10.0)], []).restarts
    assert (restart.time, restart.reason, restart.node) == (10.0, "killed", "worker-0-0")
    assert restart.what == "rank 1 on worker-0-0 (signal 9)"
    assert restart.cause.startswith("First, rank 1 on worker-0-0 ended (signal 9)")


def test_a_node_that_is_found_silent_after_failed_connections_is_their_cause() -> None:
    silent = job.NodeSuspected(time=11, node="worker-1-0", round=1, by=("worker-0-0",))
    (restart,) = history([round_formed(1, 1), disconnected(10.3), silent], []).restarts
    assert (restart.node, restart.what) == ("worker-1-0", "node worker-1-0")
    assert restart.reason == "silent to its neighbours"
    assert restart.cause.startswith("First, node worker-1-0 fell silent")
    assert "It follows that rank 0 on worker-0-0 lost its connection to another rank" in restart.cause


def test_a_node_that_is_lost_after_failed_connections_is_their_cause() -> None:
    judged = job.FaultJudged(
        time=12.0, node="worker-1-0", reason=job.Reason.NODE_LOST, decision=job.Decision.RELAUNCH_ELSEWHERE,
        detail="relaunch on another host", round=1,
    )  # fmt: skip
    (restart,) = history([round_formed(1, 1), disconnected(10.3), judged], []).restarts
    assert restart.cause.startswith(
        "Round 1 ended, connections failed: worker-1-0: node lost; rank 0 on worker-0-0 lost"
    )
    assert "relaunch on another host" in restart.cause


def test_the_last_iteration_counts_even_when_its_telemetry_was_lost() -> None:
    records = [round_formed(1, 1), round_broken(10, 1, 9), round_formed(11, 2, 9)]
    (restart,) = history(records, [at(8, 1, 6), at(12, 2, 10)]).restarts
    assert (restart.lost, restart.seconds) == (0, 2.0)


def test_slow_nodes_are_told_with_their_time() -> None:
    slow_record = job.SlowSeen(
        time=9, round=1, node="worker-0-0", ranks=(0,), part=SlowPart.DISK, detail="rank 0 is slow"
    )
    assert history([round_formed(1, 1), slow_record], []).slow == ((9, "rank 0 is slow"),)


def test_a_restart_that_is_not_over_has_no_cost_yet() -> None:
    (restart,) = history([round_formed(1, 1), round_broken(10, 1, 9)], []).restarts
    assert (restart.seconds, restart.lost) == (None, None)


def test_a_second_fault_before_any_progress_ends_the_first_restart() -> None:
    records = [
        round_formed(1, 1),
        round_broken(10, 1, 4),
        round_formed(11, 2, 4),
        round_broken(12, 2, 4),
        round_formed(13, 3, 4),
    ]
    first, second = history(records, [at(9, 1, 4), at(15, 3, 5)]).restarts
    assert (first.seconds, second.seconds) == (2.0, 3.0)


def test_a_fault_after_the_last_iteration_costs_until_the_job_ended() -> None:
    end_record = job.JobEnded(time=14, result=job.JobResult.SUCCEEDED, reason="done")
    (restart,) = history(
        [round_formed(1, 1), round_broken(10, 1, 9), round_formed(11, 2, 9), end_record], [at(9, 1, 9)]
    ).restarts
    assert restart.seconds == 4.0


def test_the_latest_round_wins_for_an_iteration() -> None:
    job_history = history([], [at(5, 2, 7, loss=2.0), at(3, 1, 7, loss=9.0), at(2, 1, 6)])
    assert [(point.iteration, point.loss) for point in job_history.curve] == [(6, 1.0), (7, 2.0)]


@pytest.mark.parametrize(("more", "unit"), [({"tokens": 64}, "nats a token"), ({}, "as the script reports it")])
def test_only_the_loss_of_a_script_that_trains_on_tokens_has_their_unit(more: dict[str, object], unit: str) -> None:
    chart = loss_chart(history([], [at(5, 1, 1, seconds=1.0, **more), at(6, 1, 2, seconds=1.0, **more)]))
    assert chart is not None
    assert chart.unit == unit


def test_a_loss_that_is_no_number_is_left_out() -> None:
    assert history([], [at(5, 1, 7, loss=float("nan"))]).points[0].loss is None


@pytest.mark.parametrize("line", [{"kind": "restored", "time": 1, "iteration": 2}, {"time": "x"}, {}])
def test_other_lines_are_passed_over(line: dict[str, object]) -> None:
    assert history([], [line]).points == ()


def test_a_reopened_job_has_not_ended() -> None:
    failed = job.JobEnded(time=4, result=job.JobResult.FAILED, reason="error")
    assert history([round_formed(1, 1), failed, job.JobReopened(time=5)], []).end is None


def test_how_often_the_state_goes_to_the_store_is_told_when_it_changes() -> None:
    def line(time: float, iteration: int, reason: str) -> dict[str, object]:
        return {"v": 1, "time": time, "kind": "interval", "round": 1, "iteration": iteration, "reason": reason}

    lines = [line(9, 70, "every 8"), line(5, 1, "every 16"), line(6, 30, "every 16"), at(7, 1, 50)]
    job_history = history([round_formed(1, 1)], lines)
    assert job_history.intervals == ((1, "every 16"), (70, "every 8"))
    assert [point.iteration for point in job_history.points] == [50]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), max_size=12, unique=True),
    st.integers(0, 6), st.integers(0, 10), st.integers(0, 12),
)  # fmt: skip
def test_what_was_trained_is_found_as_by_looking_at_all(
    spans_trained: list[tuple[int, int]], number: int, iteration: int, until: int
) -> None:
    points = [Point(float(time), *span) for time, span in enumerate(spans_trained)]
    trained = _PointsByRound(points)
    before = [p.iteration for p in points if p.round < number or (p.round == number and p.time <= until)]
    assert trained.newest(number, until) == max(before, default=0)
    later = [p for p in points if p.round > number and p.iteration > iteration]
    first = min((p.round for p in later), default=0)
    assert trained.time_passed(number, iteration) == min((p.time for p in later if p.round == first), default=None)
