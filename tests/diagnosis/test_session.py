"""One check in virtual time: who is ordered to do what, and who is given up when."""

import signal
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.diagnosis.evidence import Measurement
from everstep.runtime.diagnosis.measurement_server import death_result
from everstep.runtime.diagnosis.messages import Arrive, Over, Stage, StageResult, Stop, Together, Work
from everstep.runtime.diagnosis.session import Session
from everstep.runtime.diagnosis.verdicts import Health
from tests.diagnosis.simulated import names


def session(count: int, **options: object) -> Session:
    fresh = Session([Arrive(node, f"host-{node}", "127.0.0.1") for node in names(count)], **options)  # type: ignore[arg-type]
    fresh.begin(0.0)
    return fresh


def alone(node: str, round_number: int = 1, **changes: object) -> StageResult:
    measurement = replace(Measurement(node, "", 0.5, 0.01), **changes)  # type: ignore[arg-type]
    return StageResult(
        node, round_number, Stage.ALONE, measurement, store=f"127.0.0.1:900{node}" if node == "0" else ""
    )


def together(node: str, round_number: int = 1, **changes: object) -> StageResult:
    measurement = replace(Measurement(node, "", 0.5, 0.01, 0.1), **changes)  # type: ignore[arg-type]
    return StageResult(node, round_number, Stage.TOGETHER, measurement)


def health(over: Session) -> list[Health]:
    assert over.verdicts is not None
    return [verdict.health for verdict in over.verdicts]


def test_a_group_goes_on_together_when_all_its_members_worked_alone() -> None:
    two = session(2)
    assert two.order("0", 0) == Work(1, 1, opens_store=True, timeout_s=135.0)
    assert two.order("1", 0) == Work(1, 1, opens_store=False, timeout_s=135.0)
    two.record_result(alone("1"), 1.0)
    assert two.order("1", 1) is None
    two.record_result(alone("0"), 2.0)
    assert two.order("1", 1) == Together(2, 1, 1, 2, "127.0.0.1:9000", 75.0)
    two.record_result(together("0"), 3.0)
    two.record_result(together("1"), 3.0)
    assert health(two) == [Health.HEALTHY, Health.HEALTHY]
    over = two.order("1", 2)
    assert isinstance(over, Over)
    assert over.verdict.node == "1"


def test_a_node_that_dies_alone_frees_its_partner_at_once() -> None:
    two = session(2)
    two.record_result(alone("0"), 1.0)
    two.record_result(alone("1", died=True, error="ended by SIGKILL"), 1.0)
    assert health(two) == [Health.HEALTHY, Health.FAULTY]


def test_a_node_that_dies_after_it_worked_alone_frees_its_partner_as_soon_as_that_one_has() -> None:
    two = session(2)
    two.record_result(alone("0"), 1.0)
    two.record_result(alone("0", died=True, error="ended by SIGKILL"), 2.0)
    two.record_result(alone("1"), 3.0)
    assert health(two) == [Health.FAULTY, Health.HEALTHY]
    assert two.verdicts
    assert two.verdicts[0].reason == "ended by SIGKILL"


def test_a_death_that_is_told_of_the_half_before_frees_the_partner_at_once() -> None:
    two = session(2)
    for node in names(2):
        two.record_result(alone(node), 1.0)
    two.record_result(alone("0", died=True, error="ended by SIGKILL"), 2.0)
    assert health(two) == [Health.FAULTY, Health.HEALTHY]


def test_the_first_reason_why_a_node_is_given_up_counts() -> None:
    two = session(2)
    two.mark_lost("1", "its machine is gone", 1.0)
    two.record_result(alone("1", died=True, error="ended by SIGKILL"), 2.0)
    two.record_result(alone("0"), 3.0)
    assert two.verdicts
    assert two.verdicts[1].reason == "its machine is gone"


def test_nobody_is_named_where_the_all_reduce_aborts_all_members() -> None:
    two = session(2)
    for number in (1, 2, 3):
        for node in names(2):
            two.record_result(alone(node, number), 1.0)
        for node in names(2):
            result = together(node, number, all_reduce_s=3600.0)
            two.record_result(death_result(result, -signal.SIGABRT), 2.0)
    assert health(two) == [Health.UNDECIDED, Health.UNDECIDED]


def test_a_node_that_dies_in_the_all_reduce_frees_its_partners_at_once() -> None:
    five = session(5)
    for node in names(5):
        five.record_result(alone(node), 1.0)
    five.record_result(together("3", died=True, error="ended by SIGKILL", all_reduce_s=3600.0), 2.0)
    assert isinstance(five.order("2", 0), Stop)
    assert isinstance(five.order("4", 0), Stop)
    assert isinstance(five.order("0", 0), Together)


def test_who_is_silent_alone_is_given_up_at_half_of_the_timeout() -> None:
    two = session(2, timeout_s=20.0)
    two.record_result(alone("0"), 1.0)
    assert two.next_deadline() == 10.0
    two.handle_timer(9.9)
    assert two.verdicts is None
    two.handle_timer(10.0)
    assert health(two) == [Health.HEALTHY, Health.FAULTY]
    assert two.verdicts
    assert two.verdicts[1].reason == "its own work did not end within 10 s"


def test_who_neither_ends_nor_fails_in_the_all_reduce_has_hung() -> None:
    two = session(2, timeout_s=20.0)
    for node in names(2):
        two.record_result(alone(node), 4.0)
    two.record_result(together("1", all_reduce_s=3600.0, error="timed out"), 9.0)
    assert two.next_deadline() == 14.0
    two.handle_timer(14.0)
    assert health(two) == [Health.FAULTY, Health.HEALTHY]


def test_a_group_that_is_silent_as_a_whole_has_failed_and_nobody_is_named() -> None:
    two = session(2, timeout_s=20.0)
    for number in (1, 2):
        for node in names(2):
            two.record_result(alone(node, number), 20.0 * number)
        deadline = two.next_deadline()
        assert deadline is not None
        two.handle_timer(deadline)
    assert health(two) == [Health.UNDECIDED, Health.UNDECIDED]


def test_a_lost_node_is_given_up_at_once_whenever_it_is_lost() -> None:
    two = session(2)
    two.mark_lost("1", "its machine is gone", 1.0)
    two.record_result(alone("0"), 1.0)
    assert two.verdicts
    assert two.verdicts[1].reason == "its machine is gone"
    three = session(2)
    three.record_result(alone("1"), 1.0)
    three.mark_lost("1", "its machine is gone", 1.0)
    three.record_result(alone("0"), 2.0)
    assert health(three) == [Health.HEALTHY, Health.FAULTY]


def test_what_comes_twice_late_or_from_nobody_changes_nothing() -> None:
    two = session(2)
    for result in (alone("0"), alone("0", matmul_s=9.0), together("0"), alone("0", 2), alone("7")):
        two.record_result(result, 1.0)
    assert two.order("0", 1) is None
    two.record_result(alone("1"), 1.0)
    two.record_result(together("0"), 2.0)
    two.record_result(together("1"), 2.0)
    assert [round(seconds, 6) for seconds in two.past[0].elapsed_s().values()] == [0.6, 0.6]


def test_a_node_alone_in_the_check_needs_no_group() -> None:
    one = session(1)
    one.record_result(alone("0"), 1.0)
    assert health(one) == [Health.HEALTHY]


def test_only_the_newest_order_counts_and_numbers_only_grow() -> None:
    two = session(2)
    for node in names(2):
        two.record_result(alone(node), 1.0)
    newest = two.order("0", 0)
    assert isinstance(newest, Together)
    assert newest.number == 2
    assert two.take_ordered_nodes() == {"0", "1"}
    assert two.take_ordered_nodes() == set()


@given(st.data(), st.integers(1, 9))
def test_every_check_ends_with_a_verdict_on_each_node_whoever_is_silent_dies_or_fails(
    data: st.DataObject, count: int
) -> None:
    check = session(count, timeout_s=10.0)
    now = 0.0
    behaviour = st.sampled_from(["work", "fail", "die", "silent"])
    for _ in range(200):
        if check.verdicts is not None:
            break
        for node in names(count):
            order = check.order(node, 0)
            kind = data.draw(behaviour) if isinstance(order, Work | Together) else "silent"
            if kind == "silent" or not isinstance(order, Work | Together):
                continue
            make = alone if isinstance(order, Work) else together
            changes: dict[str, object] = {"died": kind == "die", "error": kind}
            if kind == "fail":
                changes["self_reduce_s" if isinstance(order, Work) else "all_reduce_s"] = 3600.0
            check.record_result(make(node, order.round, **changes), now)
        deadline = check.next_deadline()
        if deadline is not None:
            now = deadline
            check.handle_timer(now)
    assert check.verdicts is not None
    assert [verdict.node for verdict in check.verdicts] == names(count)
    assert all(verdict.reason for verdict in check.verdicts)
