"""Who checks with whom, and what follows from what they measured."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.diagnosis.pairs import FAILED_S, Health, Measurement, avoided_hosts, groups, judge, usable


def measured(node: str, **changes: object) -> Measurement:
    return replace(Measurement(node, node, 0.4, 0.001, 0.1), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [("", []), ("a", ["a"]), ("ab", ["ab"]), ("abc", ["abc"]), ("abcd", ["ab", "cd"]), ("abcde", ["ab", "cde"])],
)
def test_adjacent_nodes_are_paired_and_an_odd_one_joins_the_last_pair(nodes: str, wanted: list[str]) -> None:
    assert ["".join(group) for group in groups(list(nodes))] == wanted


@given(st.integers(0, 200))
def test_every_node_is_in_exactly_one_group(count: int) -> None:
    nodes = [str(number) for number in range(count)]
    grouped = groups(nodes)
    assert [node for group in grouped for node in group] == nodes
    assert all(len(group) in (2, 3) for group in grouped) or count == 1


def test_a_node_that_fails_alone_is_named_among_two() -> None:
    bad = measured("b", matmul_s=FAILED_S, all_reduce_s=FAILED_S, error="matmul: wrong")
    verdicts = judge([[measured("a", all_reduce_s=FAILED_S), bad]])
    assert [verdict.health for verdict in verdicts] == [Health.HEALTHY, Health.FAULTY]
    assert verdicts[1].reason == "matmul: wrong"
    assert "partner b is faulty" in verdicts[0].reason
    assert avoided_hosts(verdicts) == ["b"]


def test_two_nodes_that_work_only_apart_are_undecided_and_one_of_them_is_kept() -> None:
    verdicts = judge([[measured("a", all_reduce_s=FAILED_S), measured("b", all_reduce_s=FAILED_S)]])
    assert [verdict.health for verdict in verdicts] == [Health.UNDECIDED, Health.UNDECIDED]
    assert usable(verdicts) == 1
    assert avoided_hosts(verdicts) == ["b"]
    assert "the link between them, or one of them" in verdicts[0].reason


def test_a_node_whose_check_died_is_faulty_even_with_good_figures() -> None:
    verdicts = judge([[measured("a"), measured("b", died=True, error="ended by SIGKILL")]])
    assert [verdict.health for verdict in verdicts] == [Health.HEALTHY, Health.FAULTY]


seconds = st.sampled_from([0.3, FAILED_S])
figures = st.builds(
    lambda node, matmul, alone, together, died: Measurement(f"n{node}", f"h{node}", matmul, alone, together, "", died),
    st.integers(0, 9), seconds, seconds, seconds, st.booleans(),
)  # fmt: skip


@given(st.lists(st.lists(figures, min_size=1, max_size=3), max_size=5))
def test_a_node_is_avoided_only_for_its_own_failure_or_an_undecided_link(grouped: list[list[Measurement]]) -> None:
    verdicts = judge(grouped)
    assert [verdict.measurement for verdict in verdicts] == [one for group in grouped for one in group]
    for verdict in verdicts:
        one = verdict.measurement
        assert (verdict.health == Health.FAULTY) == (not one.works_alone)
        assert verdict.reason
        if verdict.health == Health.HEALTHY:
            assert not verdict.avoid
        if verdict.health == Health.FAULTY:
            assert verdict.avoid


@given(st.lists(figures, min_size=1, max_size=3))
def test_a_group_with_a_node_that_works_alone_keeps_at_least_one(group: list[Measurement]) -> None:
    names = [replace(one, node=f"n{index}", host=f"h{index}") for index, one in enumerate(group)]
    assert bool(usable(judge([names]))) == any(one.works_alone for one in names)
