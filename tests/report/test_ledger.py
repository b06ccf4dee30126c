"""Each second of each node is in the ledger once, and in the class that a model finds second by second."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.job import records as job
from everstep.runtime.protocol.rounds import Member, Round
from everstep.runtime.report.activity import Activity
from everstep.runtime.report.history import History, history
from everstep.runtime.report.ledger import Ledger, ledger
from tests.report.random_journal import RandomJournal
from tests.report.second_model import Model


def ledger_of(journal: RandomJournal, begin: int = 0, end: int | None = None) -> Ledger | None:
    return ledger(history(journal.records, journal.lines), begin, journal.end if end is None else end)


@given(st.integers(0, 10**9), st.integers(0, 20), st.integers(-20, 5))
def test_the_ledger_has_no_gap_no_overlap_and_equals_the_model(seed: int, begin: int, more: int) -> None:
    journal = RandomJournal(seed)
    end = max(journal.end + more, begin + 1)
    job_ledger = ledger_of(journal, begin, end)
    model = Model(journal.records, journal.lines, begin, end)
    nodes = {node.node: node for node in job_ledger.nodes} if job_ledger else {}
    for name in model.nodes():
        expected = model.seconds(name)
        seconds: list[Activity | None] = [None] * (end - begin)
        for stretch in nodes[name].stretches() if name in nodes else ():
            assert begin <= stretch.begin < stretch.end <= end
            for second in range(int(stretch.begin), int(stretch.end)):
                assert seconds[second - begin] is None, "a second is in the ledger twice"
                seconds[second - begin] = stretch.activity
        assert seconds == expected, name
        if name in nodes:
            sums = {activity: float(expected.count(activity)) for activity in Activity if activity in expected}
            assert {activity: some for activity, some in nodes[name].seconds.items() if some} == pytest.approx(sums)


@given(st.integers(0, 10**9))
def test_the_parts_add_up_to_the_whole(seed: int) -> None:
    job_ledger = ledger_of(RandomJournal(seed))
    if job_ledger is None:
        return
    assert sum(entry.share for entry in job_ledger.entries) == pytest.approx(1.0)
    good = sum(entry.share for entry in job_ledger.entries if entry.activity is Activity.PRODUCTIVE)
    assert sum(job_ledger.badput().values()) + good == pytest.approx(1.0)


def test_no_seconds_make_no_ledger() -> None:
    assert ledger(History(), 5.0, 5.0) is None


def test_while_a_job_is_over_it_has_no_nodes() -> None:
    records: list[job.Record] = [
        job.NodeAppeared(time=1, node="a", role="worker", index=0, host=""),
        job.RoundFormed(time=1, round=Round(1, {"worker": (Member("a", "", "", 1),)}, "", 1, None, "all joined")),
        job.JobEnded(time=3, result=job.JobResult.FAILED, reason="told to stop"),
        job.JobReopened(time=700),
        job.NodeAppeared(time=701, node="b", role="worker", index=0, host=""),
    ]
    job_ledger = ledger(history(records, []), 1, 705)
    assert job_ledger is not None
    assert job_ledger.node_seconds == 6
    assert {entry.activity for entry in job_ledger.entries} == {Activity.STARTUP, Activity.WAITING}


def test_a_node_that_comes_again_is_not_there_in_between() -> None:
    records: list[job.Record] = [
        job.NodeAppeared(time=1, node="a", role="worker", index=0, host=""),
        job.NodeLost(time=3, node="a", reason=job.Reason.NODE_LOST),
        job.NodeAppeared(time=7, node="a", role="worker", index=0, host=""),
    ]
    job_ledger = ledger(history(records, []), 1, 9)
    assert job_ledger is not None
    assert [(stretch.begin, stretch.end) for stretch in job_ledger.nodes[0].stretches()] == [(1, 3), (7, 9)]
