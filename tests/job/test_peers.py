"""Whose memory keeps the copies of whose shards."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.job.peers import copy_keepers
from everstep.runtime.protocol.rounds import Member

MACHINES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40)
ZONES = st.fixed_dictionaries({machine: st.sampled_from(["", "x", "y", "z"]) for machine in "abcdefgh"})


def members(hosts: str | list[str], zones: dict[str, str] | None = None) -> list[Member]:
    return [Member(f"n{n}", host, f"at{n}", 1, zone=(zones or {}).get(host, "")) for n, host in enumerate(hosts)]


@pytest.mark.parametrize(
    ("hosts", "keepers"),
    [
        ("a", [None]), ("aa", [None, None]), ("ab", [1, 0]), ("abc", [1, 2, 0]), ("aabb", [2, 3, 0, 1]),
        ("aaab", [3, 3, 3, 0]), ("abab", [1, 0, 3, 2]), ("aaaabb", [4, 5, 4, 5, 0, 1]), ("a" * 200, [None] * 200),
    ],
)  # fmt: skip
def test_copies_are_kept_on_another_machine(hosts: str, keepers: list[int | None]) -> None:
    assert copy_keepers(members(hosts)) == keepers


@pytest.mark.parametrize(
    ("zones", "keepers"),
    [
        ({"a": "x", "b": "x", "c": "y", "d": "y"}, [2, 3, 0, 1]),
        ({"a": "x", "b": "y", "c": "x", "d": "y"}, [1, 0, 3, 2]),
        ({"a": "x", "b": "x", "c": "x", "d": "y"}, [1, 2, 3, 0]),
        ({"a": "x", "b": "x", "c": "y"}, [1, 2, 3, 0]),
    ],
    ids=["two and two", "in turn", "three of four in one", "one unknown"],
)
def test_another_zone_comes_first_while_each_keeps_one_copy(zones: dict[str, str], keepers: list[int]) -> None:
    assert copy_keepers(members("abcd", zones)) == keepers


@given(MACHINES, ZONES)
def test_one_power_cut_never_takes_both_copies_where_there_are_two_machines(
    hosts: list[str], zones: dict[str, str]
) -> None:
    keepers = copy_keepers(members(hosts, zones))
    if len(set(hosts)) == 1:
        assert keepers == [None] * len(hosts)
        return
    assert all(keeper is not None and hosts[keeper] != host for host, keeper in zip(hosts, keepers, strict=True))


@given(MACHINES, ZONES)
def test_copies_are_spread_as_evenly_as_the_largest_machine_allows(hosts: list[str], zones: dict[str, str]) -> None:
    largest, count = max(Counter(hosts).values()), len(hosts)
    copies_by_keeper = Counter(keeper for keeper in copy_keepers(members(hosts, zones)) if keeper is not None)
    most = 1 if 2 * largest <= count or largest == count else -(-largest // (count - largest))
    assert max(copies_by_keeper.values(), default=0) <= most


@given(st.lists(st.sampled_from("xyz"), min_size=2, max_size=30))
def test_one_zone_never_takes_both_copies_where_none_has_more_than_half(zones: list[str]) -> None:
    nodes = [Member(f"n{n}", f"h{n}", f"at{n}", 1, zone=zone) for n, zone in enumerate(zones)]
    if 2 * max(Counter(zones).values()) <= len(zones):
        keepers = copy_keepers(nodes)
        assert all(keeper is not None and zones[keeper] != zone for zone, keeper in zip(zones, keepers, strict=True))
