"""The lines that say which switch a node hangs at."""

import pytest

from everstep.runtime.job.topology import TopologyError, order_by_place, switches

LINES = """
asw-0 psw-0 192.168.0.0
asw-1 psw-0 192.168.0.1   # a comment
asw-0 psw-0 192.168.0.4

asw-1 psw-1 192.168.0.5
"""


def test_lines_are_read_and_comments_skipped() -> None:
    switch_map = switches(LINES.splitlines())
    assert switch_map["192.168.0.1"] == "asw-1"
    assert len(switch_map) == 4


def test_nodes_under_one_access_switch_come_side_by_side_the_first_nodes_switch_first() -> None:
    topology = switches(LINES.splitlines())
    addresses = ["192.168.0.1", "10.0.0.1", "192.168.0.0", "192.168.0.5", "192.168.0.4"]
    expected = ["192.168.0.1", "192.168.0.5", "10.0.0.1", "192.168.0.0", "192.168.0.4"]
    assert order_by_place(addresses, lambda ip: (topology.get(ip, ""),)) == expected


def test_zones_then_switches_then_machines_lie_side_by_side() -> None:
    places = [("b", "s", "1"), ("a", "s", "2"), ("b", "t", "3"), ("b", "s", "4"), ("a", "s", "2"), ("b", "s", "1")]
    expected = [("b", "s", "1"), ("b", "s", "1"), ("b", "s", "4"), ("b", "t", "3"), ("a", "s", "2"), ("a", "s", "2")]
    assert order_by_place(places, lambda place: place) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("asw-0 psw-0", "^1: 2 words"),
        ("\nasw-0 psw-0 192.168.0.0 more", "^2: 4 words"),
        ("asw-0 psw-0 192.168.0", "^1: '192.168.0' is not an IP address"),
        ("a p 10.0.0.1\na p 10.0.0.1", r"^2: 10\.0\.0\.1 is also in an earlier line"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(text: str, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        switches(text.splitlines())
