"""Who checks with whom in which round, and that up to N/4 faulty nodes are named exactly, for every N."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.diagnosis.evidence import DeviceFinding, Measurement, Round, weigh
from everstep.runtime.diagnosis.rounds import Plan, next_round, pair_adjacent
from tests.diagnosis.simulated import check, fault_sets, names

ALL = range(2, 17)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [("", []), ("a", ["a"]), ("ab", ["ab"]), ("abc", ["abc"]), ("abcd", ["ab", "cd"]), ("abcde", ["ab", "cde"])],
)
def test_adjacent_nodes_are_paired_and_an_odd_one_joins_the_last_pair(nodes: str, expected: list[str]) -> None:
    assert ["".join(group) for group in pair_adjacent(list(nodes))] == expected


@pytest.mark.parametrize("count", ALL)
def test_up_to_a_quarter_of_faulty_nodes_are_named_exactly_whoever_they_are(count: int) -> None:
    nodes = names(count)
    for faulty in fault_sets(nodes, count // 4):
        rounds = check(nodes, faulty)
        evidence = weigh(nodes, rounds)
        assert set(evidence.faulty) == set(faulty), (faulty, rounds)
        assert evidence.healthy == set(nodes) - set(faulty)
        assert len(rounds) <= 3


@pytest.mark.parametrize("count", range(2, 13))
def test_they_are_named_exactly_too_when_some_fail_by_themselves_and_some_only_with_others(count: int) -> None:
    nodes = names(count)
    for faulty in fault_sets(nodes, count // 4):
        for alone in fault_sets(faulty, len(faulty), 1):
            rounds = check(nodes, [node for node in faulty if node not in alone], alone)
            evidence = weigh(nodes, rounds)
            assert set(evidence.faulty) == set(faulty), (faulty, alone, rounds)
            assert not evidence.undecided
            assert len(rounds) <= 3


@pytest.mark.parametrize("count", range(4, 15))
def test_up_to_a_quarter_of_slow_links_are_told_exactly_though_partners_wait_for_them(count: int) -> None:
    nodes = names(count)
    for slow in fault_sets(nodes, count // 4):
        rounds = check(nodes, links=dict.fromkeys(slow, 3.0))
        evidence = weigh(nodes, rounds)
        assert evidence.slow == set(slow), (slow, rounds)
        assert not evidence.possibly_slow
        assert len(rounds) <= 3


def test_seconds_of_devices_are_not_compared_with_those_of_cpus() -> None:
    """As where a new node has a partner that trains."""
    devices = (DeviceFinding("cuda:0", 0.9, 50_000.0, 52_000.0),)
    new, other = (
        Measurement("new", "a", 0.9, 0.0, 0.1, devices=devices),
        Measurement("other", "b", 2.9, 0.0, 0.1, devices=devices),
    )
    partner = Measurement("partner", "c", 0.2, 0.0, 0.1)
    alone = [Round(1, (("partner", "new"),), "", {"partner": partner, "new": new})]
    assert not weigh(["partner", "new"], alone, ["partner"]).slow
    two = [Round(1, (("partner", "new", "other"),), "", {"partner": partner, "new": new, "other": other})]
    assert weigh(["partner", "new", "other"], two, ["partner"]).slow == {"other"}


@pytest.mark.parametrize("count", range(2, 11))
def test_with_any_number_of_faulty_nodes_nobody_is_ever_named_or_cleared_wrongly(count: int) -> None:
    nodes = names(count)
    for faulty in fault_sets(nodes, count):
        evidence = weigh(nodes, check(nodes, faulty))
        assert set(evidence.faulty) <= set(faulty)
        assert not evidence.healthy & set(faulty)
        assert not evidence.untried


def published_rounds(nodes: Sequence[str], past: Sequence[Round], trusted: Sequence[str]) -> Plan:
    """The two rounds of DLRover's network check, for comparison: no third one, and no look at what was tried."""
    if not past:
        return Plan(tuple(pair_adjacent(nodes)), "")
    if len(past) > 1:
        return Plan((), "")
    ordered = sorted(nodes, key=lambda node: past[0].elapsed_s()[node])
    groups: list[tuple[str, ...]] = [(ordered.pop(0), ordered.pop()) for _ in range(len(ordered) // 2)]
    if ordered:
        groups[-1] += (ordered[0],)
    return Plan(tuple(groups), "")


def failed_twice(rounds: Sequence[Round]) -> set[str]:
    first, second = (round_.elapsed_s() for round_ in rounds)
    return {node for node in first if first[node] == second[node] == 3600}


def test_where_the_published_rule_of_two_rounds_names_an_innocent_node_ours_does_not() -> None:
    nodes = names(5)
    wrong = []
    for node in nodes:
        if failed_twice(check(nodes, [node], plan=published_rounds)) != {node}:
            wrong.append(node)
        assert set(weigh(nodes, check(nodes, [node])).faulty) == {node}
    assert wrong == ["2", "3"]


@pytest.mark.parametrize("count", [4, 6, 8, 12])
def test_for_even_numbers_both_rules_agree(count: int) -> None:
    nodes = names(count)
    for faulty in fault_sets(nodes, count // 4):
        assert failed_twice(check(nodes, faulty, plan=published_rounds)) == set(faulty)


def test_two_nodes_that_fail_together_are_tried_once_more_and_stay_undecided() -> None:
    for faulty in ("0", "1", "01"):
        rounds = check(names(2), faulty)
        evidence = weigh(names(2), rounds)
        assert evidence.undecided == {"0", "1"}
        assert len(rounds) == 2


def test_a_single_faulty_node_of_three_is_named_by_the_three_pairs() -> None:
    for node in names(3):
        rounds = check(names(3), [node])
        assert set(weigh(names(3), rounds).faulty) == {node}
        assert len(rounds) <= 4


def test_of_three_nodes_two_faulty_ones_leave_all_undecided() -> None:
    for faulty in combinations(names(3), 2):
        assert weigh(names(3), check(names(3), faulty)).undecided == {"0", "1", "2"}


def test_a_node_that_fails_by_itself_is_named_among_two() -> None:
    rounds = check(names(2), alone=["1"])
    evidence = weigh(names(2), rounds)
    assert (set(evidence.faulty), evidence.untried, len(rounds)) == ({"1"}, {"0"}, 1)


def test_when_all_is_well_one_round_is_enough() -> None:
    for count in range(1, 20):
        rounds = check(names(count))
        assert len(rounds) == 1
        assert next_round(names(count), rounds).reason == "every node is decided"


def test_a_new_node_is_tried_with_a_trusted_partner_and_decided_at_once() -> None:
    nodes = names(8)
    for faulty in ([], ["6"], ["6", "7"]):
        rounds = check(nodes, faulty, trusted=nodes[:6])
        assert set(weigh(nodes, rounds, nodes[:6]).faulty) == set(faulty)
        assert [len(round_.groups) for round_ in rounds] == [2]
        assert all(len(set(group) & {"6", "7"}) == 1 for group in rounds[0].groups)


def test_a_trusted_partner_that_is_slow_since_it_trains_costs_no_further_round() -> None:
    rounds = check(["new", "busy", "spare"], trusted=["busy", "spare"], own={"busy": 5.0})
    assert [round_.groups for round_ in rounds] == [(("busy", "new"),)]


def test_new_nodes_without_enough_trusted_partners_are_paired_among_themselves_first() -> None:
    nodes = names(4)
    for faulty in nodes[1:]:
        rounds = check(nodes, [faulty], trusted=["0"])
        assert set(weigh(nodes, rounds, ["0"]).faulty) == {faulty}


speeds = st.floats(0.1, 0.19)


@given(st.data(), st.integers(4, 40))
def test_whatever_the_nodes_times_are_a_quarter_of_faulty_ones_is_named(data: st.DataObject, count: int) -> None:
    nodes = names(count)
    times = data.draw(st.lists(speeds, min_size=count, max_size=count))
    faulty = data.draw(st.sets(st.sampled_from(nodes), max_size=count // 4))
    rounds = check(nodes, sorted(faulty), links=dict(zip(nodes, times, strict=True)))
    assert set(weigh(nodes, rounds).faulty) == faulty
    for round_ in rounds:
        grouped = [node for group in round_.groups for node in group]
        assert len(grouped) == len(set(grouped))
