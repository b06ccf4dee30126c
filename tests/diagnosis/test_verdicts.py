"""What is said of each node, and whom training avoids."""

from dataclasses import replace

import pytest

from everstep.runtime.diagnosis.evidence import Measurement, Round
from everstep.runtime.diagnosis.verdicts import Health, Verdict, avoided_hosts, judge, nodes_with, usable_count
from everstep.runtime.job.slow_checks import slow_threshold_s
from tests.diagnosis.simulated import check, names


def verdicts(rounds: list[Round], count: int, exclude_straggler: bool = False) -> list[Verdict]:
    hosts = [f"host-{node}" for node in names(count)]
    return judge(names(count), hosts, rounds, exclude_straggler=exclude_straggler)


def test_a_node_that_fails_alone_is_named_and_its_partner_is_kept() -> None:
    judgements = verdicts(check(names(2), alone=["1"]), 2)
    assert [judgement.health for judgement in judgements] == [Health.HEALTHY, Health.FAULTY]
    assert judgements[0].reason == "works alone; no partner was left to try the link"
    assert avoided_hosts(judgements) == ["host-1"]


def test_two_nodes_that_work_only_apart_are_undecided_and_one_of_them_is_kept() -> None:
    judgements = verdicts(check(names(2), ["0"]), 2)
    assert [judgement.health for judgement in judgements] == [Health.UNDECIDED, Health.UNDECIDED]
    assert usable_count(judgements) == 1
    assert avoided_hosts(judgements) == ["host-1"]
    assert judgements[0].reason == "works alone but not with 1: the link between them, or one of them"


def test_undecided_nodes_are_avoided_where_others_are_proven_to_work() -> None:
    judgements = verdicts(check(names(5), ["2", "3", "4"]), 5)
    assert nodes_with(judgements, Health.HEALTHY) == ["0", "1"]
    assert usable_count(judgements) == 2


def test_a_named_node_is_told_with_whom_it_failed() -> None:
    judgements = verdicts(check(names(4), ["1"]), 4)
    assert nodes_with(judgements, Health.FAULTY) == ["1"]
    assert judgements[1].reason == "works alone but not with 0, 2, proven to work with others"


def test_a_named_node_is_told_with_the_error_that_it_measured() -> None:
    def with_error(round_: Round) -> Round:
        told = replace(round_.measured["1"], error="all-reduce: cuda:3: NCCL error")
        return replace(round_, measured={**round_.measured, "1": told})

    past = [with_error(round_) for round_ in check(names(4), ["1"])]
    assert verdicts(past, 4)[1].reason == (
        "works alone but not with 0, 2, proven to work with others (all-reduce: cuda:3: NCCL error)"
    )


def test_two_proven_nodes_that_fail_only_with_each_other_have_a_bad_link() -> None:
    def measurement(node: str, reduced: float) -> Measurement:
        return Measurement(node, node, 0.5, 0.01, reduced)

    first = {node: measurement(node, 3600.0 if node in "01" else 0.1) for node in names(4)}
    second = {node: measurement(node, 0.1) for node in names(4)}
    judgements = verdicts(
        [Round(1, (("0", "1"), ("2", "3")), "", first), Round(2, (("2", "1"), ("3", "0")), "", second)], 4
    )
    assert nodes_with(judgements, Health.HEALTHY) == names(4)
    assert judgements[0].reason == "works, but not with 1, which works too: look at the link between them"


def test_a_node_whose_check_died_is_faulty_even_with_good_figures() -> None:
    measurements = {
        "0": Measurement("0", "host-0", 0.4, 0.01, 0.1),
        "1": Measurement("1", "host-1", 0.4, 0.01, 0.1, "ended by SIGKILL", died=True),
    }
    judgements = verdicts([Round(1, (("0", "1"),), "", measurements)], 2)
    assert [judgement.health for judgement in judgements] == [Health.HEALTHY, Health.FAULTY]
    assert judgements[1].reason == "ended by SIGKILL"


@pytest.mark.parametrize("count", [2, 3, 4, 5, 9])
def test_a_slow_node_is_a_straggler_and_avoided_only_when_asked(count: int) -> None:
    rounds = check(names(count), own={"1": 4.0})
    judgements = verdicts(rounds, count)
    assert nodes_with(judgements, Health.STRAGGLER) == ["1"]
    assert avoided_hosts(judgements) == []
    whose = "the other node's" if count == 2 else "the median of all nodes,"
    assert judgements[1].reason == f"4.10 s at best, more than 2 x {whose} 0.60 s"
    assert avoided_hosts(verdicts(rounds, count, exclude_straggler=True)) == ["host-1"]


def test_exactly_twice_the_median_is_no_straggler() -> None:
    assert slow_threshold_s([1.0, 1.0, 2.0, 8.0]) == 3.0
    rounds = check(names(3), own={"0": 0.4, "1": 0.4, "2": 0.9})
    assert [round(seconds, 9) for seconds in rounds[-1].elapsed_s().values()] == [0.5, 0.5, 1.0]
    exact = [0.5, 0.5, 1.0]
    assert not exact[2] > slow_threshold_s(exact)


def test_of_two_nodes_one_is_slow_when_it_takes_more_than_twice_the_others_time() -> None:
    assert slow_threshold_s([1.0, 9.0]) == 2.0
    assert slow_threshold_s([1.0]) == float("inf")
