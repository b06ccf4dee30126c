"""Events of one moment, decided together: the same as one by one, but for the order in which it is decided."""

from everstep.runtime.job.brain import Brain, UnknownNode, WriteRecord
from everstep.runtime.job.events import Joined, Opened
from everstep.runtime.job.fold import fold
from everstep.runtime.job.records import MasterClaimed
from everstep.runtime.job.spec import JobSpec, RoleSpec
from everstep.runtime.protocol.messages import Join


def brain() -> Brain:
    opened = Brain(JobSpec("j", {"worker": RoleSpec(4, 2)}), fold([MasterClaimed(time=1.0, epoch=1, address="m")]), 1.0)
    opened.handle(Opened(), 1.0)
    return opened


def joins(brain_: Brain) -> list[Joined]:
    return [Joined(Join(name, "worker", node.host, 1, "a:1", 1)) for name, node in brain_.state.nodes.items()]


def test_joins_of_one_moment_form_the_round_that_they_form_one_by_one() -> None:
    single, together = brain(), brain()
    for join in joins(single):
        single.handle(join, 2.0)
    together.handle_together(joins(together), 2.0)
    assert together.state == single.state
    assert together.state.round is not None


def test_a_refused_one_changes_nothing_and_stops_no_other() -> None:
    brain_ = brain()
    stranger = Joined(Join("nobody", "worker", "h", 1, "a:1", 1))
    decisions, refusals = brain_.handle_together([stranger, *joins(brain_)], 2.0)
    assert [(place, type(refusal)) for place, refusal in refusals.items()] == [(0, UnknownNode)]
    assert all(isinstance(decision, WriteRecord) for decision in decisions)
    assert "nobody" not in brain_.state.nodes
    assert brain_.state.round is not None
