"""Whose memory keeps the copies of whose shards."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.job.assignments import seat
from everstep.runtime.job.events import NodeGone
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.peers import copy_keepers
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.protocol.rounds import Member
from tests.job.world import World, platform

MACHINES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40)
ZONES = st.fixed_dictionaries({machine: st.sampled_from(["", "x", "y", "z"]) for machine in "abcdefgh"})
COPIES = st.integers(0, 4)


def members(hosts: str | list[str], zones: dict[str, str] | None = None) -> list[Member]:
    return [Member(f"n{n}", host, f"at{n}", 1, zone=(zones or {}).get(host, "")) for n, host in enumerate(hosts)]


def copies_by_keeper(keepers: list[tuple[int, ...]]) -> Counter[int]:
    return Counter(keeper for each in keepers for keeper in each)


@pytest.mark.parametrize(
    ("hosts", "keepers"),
    [
        ("a", [None]), ("aa", [None, None]), ("ab", [1, 0]), ("abc", [1, 2, 0]), ("aabb", [2, 3, 0, 1]),
        ("aaab", [3, 3, 3, 0]), ("abab", [1, 0, 3, 2]), ("aaaabb", [4, 5, 4, 5, 0, 1]), ("a" * 200, [None] * 200),
    ],
)  # fmt: skip
def test_a_copy_is_kept_on_another_machine(hosts: str, keepers: list[int | None]) -> None:
    assert copy_keepers(members(hosts)) == [() if keeper is None else (keeper,) for keeper in keepers]


@pytest.mark.parametrize(
    ("hosts", "copies", "keepers"),
    [
        ("abcd", 2, [(1, 2), (2, 3), (3, 0), (0, 1)]), ("abcd", 3, [(1, 2, 3), (2, 3, 0), (3, 0, 1), (0, 1, 2)]),
        ("aabbcc", 2, [(2, 4), (3, 5), (4, 0), (5, 1), (0, 2), (1, 3)]), ("aabc", 2, [(2, 3), (3, 2), (0, 3), (1, 2)]),
        ("abc", 0, [(), (), ()]), ("", 2, []),
    ],
)  # fmt: skip
def test_several_copies_are_kept_on_as_many_machines(hosts: str, copies: int, keepers: list[tuple[int, ...]]) -> None:
    assert copy_keepers(members(hosts), copies) == keepers


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
    assert copy_keepers(members("abcd", zones)) == [(keeper,) for keeper in keepers]


@given(MACHINES, ZONES, COPIES)
def test_a_power_cut_of_as_many_machines_as_there_are_copies_never_takes_all(
    hosts: list[str], zones: dict[str, str], copies: int
) -> None:
    for host, keepers in zip(hosts, copy_keepers(members(hosts, zones), copies), strict=True):
        machines = {host, *(hosts[keeper] for keeper in keepers)}
        assert len(machines) == 1 + len(keepers) == min(1 + copies, len(set(hosts)))


@given(MACHINES, COPIES)
def test_each_keeps_as_many_copies_as_it_has_while_no_machine_has_more_than_its_share(
    hosts: list[str], copies: int
) -> None:
    keepers = copy_keepers(members(hosts), copies)
    if len(keepers[0]) == copies and (copies + 1) * max(Counter(hosts).values()) <= len(hosts):
        assert all(copies_by_keeper(keepers)[index] == copies for index in range(len(hosts)))


@given(MACHINES, ZONES)
def test_single_copies_are_spread_as_evenly_as_the_largest_machine_allows(
    hosts: list[str], zones: dict[str, str]
) -> None:
    largest, count = max(Counter(hosts).values()), len(hosts)
    most = 1 if 2 * largest <= count or largest == count else -(-largest // (count - largest))
    assert max(copies_by_keeper(copy_keepers(members(hosts, zones))).values(), default=0) <= most


@given(st.lists(st.sampled_from("xyz"), min_size=2, max_size=30), st.integers(1, 3))
def test_the_copies_are_in_as_many_zones_as_have_room_for_them(zones: list[str], copies: int) -> None:
    nodes = [Member(f"n{n}", f"h{n}", f"at{n}", 1, zone=zone) for n, zone in enumerate(zones)]
    keepers = copy_keepers(nodes, copies)
    room = min(copies, len(zones) // max(Counter(zones).values()) - 1)
    for zone, each in zip(zones, keepers, strict=True):
        assert len({zone, *(zones[keeper] for keeper in each)}) >= 1 + room
    assert max(copies_by_keeper(keepers).values()) <= 1 + copies


@given(st.integers(2, 30), st.integers(0, 29), COPIES)
def test_a_node_that_goes_takes_only_the_copies_that_it_kept(count: int, gone: int, copies: int) -> None:
    before = members([f"h{n}" for n in range(count)])
    after = [member for n, member in enumerate(before) if n != gone % count]
    names_before, names_after = (
        {
            member.node: {nodes[keeper].node for keeper in keepers}
            for member, keepers in zip(nodes, copy_keepers(nodes, copies), strict=True)
        }
        for nodes in (before, after)
    )
    lost = before[gone % count].node
    for name, keepers in names_after.items():
        assert names_before[name] - {lost} <= keepers


def test_each_seat_names_the_nodes_that_keep_its_copies_and_how_many_it_keeps_of_others() -> None:
    world = World(platform({"worker": RoleSpec(4, 4)}, peer_copies=2))
    world.join_all()
    nodes = [f"worker-{number}-0" for number in range(4)]
    for number, node in enumerate(nodes):
        place = seat(world.state, node)
        assert place is not None
        assert place.peers == tuple(world.state.nodes[nodes[(number + turn) % 4]].address for turn in (1, 2))
        assert (place.keeps, place.peer_copies) == (2, 2)


def test_fewer_machines_than_copies_are_told_once() -> None:
    world = World(platform({"worker": RoleSpec(3, 2)}, peer_copies=3))
    world.join_all()
    reasons = [reason_of_round(world)]
    world.exit("worker-0-0", -9)
    world.join_all()
    reasons.append(reason_of_round(world))
    world.send(NodeGone("worker-2-0", "test"))
    for name in world.names(NodePhase.REJOINING):
        world.join(name)
    world.wait(30)
    reasons.append(reason_of_round(world))
    assert [reason.partition("; in rank order: ")[2].partition("; ")[2] for reason in reasons] == [
        "2 of 3 peer copies, for machines of its worker nodes: 3", "",
        "1 of 3 peer copies, for machines of its worker nodes: 2",
    ]  # fmt: skip


def reason_of_round(world: World) -> str:
    assert world.state.round is not None
    return world.state.round.reason
