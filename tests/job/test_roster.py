"""The roster against a plain dictionary, also where versions branch."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from everstep.runtime.job.nodes import LIVE, NodePhase, NodeState
from everstep.runtime.job.roster import CHUNK, Roster

NODES = st.builds(
    NodeState,
    name=st.integers(0, 3 * CHUNK).map(lambda number: f"n{number}"),
    role=st.sampled_from(["worker", "ps"]),
    index=st.just(0),
    launch=st.just(0),
    host=st.just("h"),
    requested_at=st.just(1.0),
    phase=st.sampled_from(NodePhase),
    leaving_until=st.sampled_from([0.0, 5.0]),
)


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(NODES, max_size=CHUNK)), max_size=8))
def test_every_version_stays_what_it_was_whatever_branches_off(steps: list[tuple[int, list[NodeState]]]) -> None:
    versions: list[tuple[Roster, dict[str, NodeState]]] = [(Roster(), {})]
    for parent, nodes in steps:
        roster, expected_nodes = versions[parent % len(versions)]
        versions.append((roster.with_nodes(nodes), {**expected_nodes, **{node.name: node for node in nodes}}))
    for roster, expected_nodes in versions:
        assert dict(roster.items()) == expected_nodes
        assert list(roster) == list(expected_nodes)
        assert (len(roster), "n0" in roster) == (len(expected_nodes), "n0" in expected_nodes)
        for role in ("worker", "ps"):
            assert roster.count_ever(role) == sum(node.role == role for node in expected_nodes.values())
            for leaving in (False, True):
                matching_nodes = [
                    node
                    for node in expected_nodes.values()
                    if (node.role, node.is_leaving) == (role, leaving) and node.phase in LIVE
                ]
                assert list(roster.select(role, LIVE, leaving)) == matching_nodes
                assert roster.count(role, LIVE, leaving) == len(matching_nodes)
        assert roster.total(LIVE) == sum(node.phase in LIVE for node in expected_nodes.values())
        assert roster.any_leaving() == any(node.is_leaving and node.phase in LIVE for node in expected_nodes.values())


@given(st.lists(NODES, max_size=3 * CHUNK), st.lists(NODES, max_size=5))
def test_what_changed_is_told_by_name(before: list[NodeState], after: list[NodeState]) -> None:
    first = Roster(before)
    second = first.with_nodes([replace(node) for node in after])
    assert set(second.changed_names(first)) == {node.name for node in after}
    assert second.changed_names(second) == []
