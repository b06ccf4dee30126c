"""The rules one by one: what a death means, what is restored, which specs contradict themselves."""

import pytest

from everstep.runtime.job import restore
from everstep.runtime.job.assignments import directive, seat
from everstep.runtime.job.brain import Brain, WriteRecord
from everstep.runtime.job.events import (
    Event,
    Joined,
    NodeChecked,
    NodeFinishedRound,
    NodeGone,
    Opened,
    ScaleRequested,
    WorkerExited,
)
from everstep.runtime.job.fault_policy import reason_of
from everstep.runtime.job.fold import apply, fold
from everstep.runtime.job.nodes import NodePhase, UnlistedTransition
from everstep.runtime.job.reasons import JobResult, Reason
from everstep.runtime.job.records import MasterClaimed, NodeRequested, Record
from everstep.runtime.job.spec import JobSpec, Patience, RoleSpec
from everstep.runtime.job.spec_problems import problems
from everstep.runtime.job.state import State
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Action, Finished, Join, SelfTest, WorkerExit


class Job:
    """A brain at a standing clock, with a round of all its nodes running."""

    def __init__(self, nodes: int = 2, patience: Patience = Patience()) -> None:  # noqa: B008 (frozen)
        spec = JobSpec("j", {"worker": RoleSpec(nodes, 1)}, patience)
        self.brain = Brain(spec, fold([MasterClaimed(time=1.0, epoch=1, address="m:1")]), 1.0)
        self.records: list[Record] = []
        self.send(Opened())
        self.join_all()

    def send(self, event: Event) -> None:
        self.records += [d.record for d in self.brain.handle(event, 1.0) if isinstance(d, WriteRecord)]

    @property
    def state(self) -> State:
        return self.brain.state

    @property
    def number(self) -> int:
        return self.state.round.number if self.state.round else 0

    def join_all(self) -> None:
        for node in sorted(self.state.nodes.values(), key=lambda n: n.name):
            if node.phase in (NodePhase.REQUESTED, NodePhase.REJOINING):
                self.send(
                    Joined(
                        Join(
                            node.name,
                            "worker",
                            node.host,
                            1,
                            f"{node.name}:1",
                            1,
                            (),
                            self.number,
                            number=self.number + 1,
                        )
                    )
                )

        self.test_all()

    def test_all(self) -> None:
        """Every node that is told to test itself finds nothing."""
        for node in self.state.nodes.values():
            if node.phase is NodePhase.CHECKING:
                self.send(NodeChecked(SelfTest(node.name, node.action_round, 0.5)))

    def fault(
        self, name: str, code: int, iteration: int = 3, error: str = "ValueError: bad", ago_s: float = 0.0
    ) -> None:
        self.send(WorkerExited(WorkerExit(name, self.number, 0, 0, code, iteration, error, ago_s)))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (-9, Reason.KILLED), (137, Reason.KILLED), (-15, Reason.KILLED), (143, Reason.KILLED), (1, Reason.USER_ERROR),
        (-6, Reason.USER_ERROR), (134, Reason.USER_ERROR), (-11, Reason.USER_ERROR), (247, Reason.OOM),
        (201, Reason.HARDWARE), (202, Reason.HARDWARE), (14, Reason.HARDWARE),
    ],
)  # fmt: skip
def test_an_exit_code_has_one_reason(code: int, reason: Reason) -> None:
    assert reason_of(code) is reason


def test_the_same_error_at_the_same_iteration_twice_fails_with_its_traceback() -> None:
    job = Job()
    job.fault("worker-0-0", 1)
    job.join_all()
    assert job.number == 2
    job.fault("worker-0-0", 1)
    job.join_all()
    assert job.state.ended is not None
    assert (job.state.ended.result, job.state.ended.exit_code) == (JobResult.FAILED, 1)
    assert job.state.ended.error == "ValueError: bad"


def test_the_traceback_is_that_of_the_rank_that_failed_first() -> None:
    job = Job()
    for _ in range(2):
        job.fault("worker-1-0", 1, error="RuntimeError: peer closed", ago_s=0.1)
        job.fault("worker-0-0", 1, error="ValueError: bad", ago_s=5.0)
        job.join_all()
    assert job.state.ended is not None
    assert job.state.ended.error == "ValueError: bad"


def test_different_errors_fail_the_job_after_max_restarts() -> None:
    job = Job()
    for iteration in range(4):
        assert job.state.ended is None
        job.fault("worker-0-0", 1, iteration)
        job.join_all()
    assert job.state.ended is not None
    assert "3 restarts" in job.state.ended.reason


def test_an_error_that_only_echoes_a_kill_is_not_charged() -> None:
    job = Job(patience=Patience(no_progress=0))
    for _ in range(6):
        job.fault("worker-1-0", 1, error="RuntimeError: Connection closed by peer")
        job.fault("worker-0-0", -9)
        job.join_all()
    assert job.state.ended is None
    assert job.number == 7


def test_rounds_without_a_new_iteration_end_the_job_whatever_the_cause() -> None:
    job = Job(patience=Patience(no_progress=3))
    for _ in range(3):
        assert job.state.ended is None
        job.fault("worker-0-0", -9, iteration=0)
        job.join_all()
    assert job.state.ended is not None
    assert "without a new iteration" in job.state.ended.reason


def test_kills_that_each_leave_a_new_iteration_behind_never_end_the_job() -> None:
    job = Job(patience=Patience(no_progress=3))
    for iteration in range(1, 12):
        job.fault("worker-0-0", -9, iteration)
        job.join_all()
    assert job.state.ended is None


def test_faulty_hardware_is_replaced_on_another_host() -> None:
    job = Job()
    job.fault("worker-0-0", 201)
    order = directive(job.state, "worker-0-0")
    assert order is not None
    assert order.action is Action.LEAVE
    request = next(r for r in reversed(job.records) if isinstance(r, NodeRequested))
    assert (request.node, request.host, request.replaces) == ("worker-0-1", "local-2", "worker-0-0")


def test_a_node_is_given_up_after_its_last_replacement_and_the_others_go_on() -> None:
    job = Job()
    for launch in range(4):
        job.send(NodeGone(f"worker-1-{launch}", "killed"))
        job.join_all()
    assert job.state.ended is None
    assert [n.name for n in job.state.nodes.values() if n.phase is NodePhase.RUNNING] == ["worker-0-0"]


def test_a_finished_node_joins_again_when_another_fails_at_the_end() -> None:
    job = Job()
    job.send(NodeFinishedRound(Finished("worker-0-0", 1)))
    job.fault("worker-1-0", -9)
    order = directive(job.state, "worker-0-0")
    assert order is not None
    assert (order.action, order.round) == (Action.REJOIN, 1)


def test_a_node_lost_after_it_finished_costs_nothing() -> None:
    job = Job()
    job.send(NodeFinishedRound(Finished("worker-0-0", 1)))
    job.send(NodeGone("worker-0-0", "killed"))
    job.send(NodeFinishedRound(Finished("worker-1-0", 1)))
    assert job.state.ended is not None
    assert job.state.ended.result is JobResult.SUCCEEDED


def test_scaling_down_lets_the_highest_index_leave_and_up_asks_for_it_again() -> None:
    job = Job()
    job.send(ScaleRequested("worker", 1))
    job.join_all()
    assert job.state.round is not None
    assert [m.node for m in job.state.round.members["worker"]] == ["worker-0-0"]
    job.send(ScaleRequested("worker", 2))
    assert job.state.nodes["worker-1-1"].phase is NodePhase.REQUESTED
    assert job.state.relaunches == {}


def test_an_iteration_is_ended_before_a_round_that_has_lost_no_rank() -> None:
    job = Job(nodes=3)
    job.send(ScaleRequested("worker", 2))
    order = directive(job.state, "worker-0-0")
    assert order is not None
    assert (order.action, order.ends_iteration) == (Action.REJOIN, True)
    job.join_all()
    job.fault("worker-1-0", -9)
    order = directive(job.state, "worker-0-0")
    assert order is not None
    assert (order.action, order.ends_iteration) == (Action.REJOIN, False)


def test_a_seat_is_a_function_of_the_round_and_the_node() -> None:
    state = Job(nodes=3).state
    seats = [seat(state, f"worker-{index}-0") for index in range(3)]
    assert [s and (s.group_rank, s.first_rank, s.world_size, s.persists) for s in seats] == [
        (0, 0, 3, True), (1, 1, 3, False), (2, 2, 3, False),
    ]  # fmt: skip
    assert seat(state, "worker-9-0") is None


def test_an_unlisted_transition_raises() -> None:
    again = NodeRequested(time=1.0, node="worker-0-0", role="worker", index=0, launch=0, host="")
    with pytest.raises(UnlistedTransition):
        apply(Job().state, again)


def test_only_a_state_of_which_every_shard_is_held_is_restored() -> None:
    torn = Holding(2, 9, shard=0, shards=2, node="a")
    whole = [Holding(1, 8, shard=s, shards=2, node="a") for s in range(2)]
    stored = Holding(1, 8, shard=0, shards=2, key="k")
    choice = restore.choose_restore([stored, torn, *whole])
    assert choice is not None
    assert (choice.round, choice.iteration) == (1, 8)
    assert [(s.shard, s.node, s.key) for s in choice.sources] == [(0, "a", ""), (0, "", "k"), (1, "a", "")]
    assert restore.choose_restore([torn]) is None


def test_after_a_loss_that_is_no_number_right_after_a_restore_the_round_begins_from_an_earlier_state() -> None:
    job = Job(1)
    (node,) = job.state.nodes.values()

    def begins_from(code: int, *places_held: tuple[int, int]) -> tuple[int, int, bool]:
        """Of the round after a worker's end with that exit code, with these states in the node's memory."""
        job.fault(node.name, code)
        holdings = tuple(Holding(*place, node=node.name) for place in places_held)
        job.send(
            Joined(
                Join(
                    node.name, "worker", node.host, 1, f"{node.name}:1", 1, holdings, job.number, number=job.number + 1
                )
            )
        )
        job.test_all()
        assert job.state.round is not None
        restore = job.state.round.restore
        assert restore is not None
        return (
            restore.round,
            restore.iteration,
            "a step back, for the loss after iteration 4 of round 1" in restore.reason,
        )

    assert begins_from(-9, (1, 3), (1, 4)) == (1, 4, False)
    assert begins_from(76, (1, 3), (1, 4), (2, 5)) == (1, 3, True)
    assert begins_from(-9, (1, 3), (2, 5), (3, 4)) == (3, 4, False)
    assert begins_from(76, (3, 4)) == (3, 4, False), "nothing else is held"


def test_the_reason_of_a_choice_names_the_shards_that_only_the_store_has() -> None:
    memory = [Holding(1, 8, shard=s, shards=6, node="a") for s in (0, 1, 4)]
    stored = [Holding(1, 8, shard=s, shards=6, key="k") for s in range(6)]
    assert [choice and choice.reason for choice in map(restore.choose_restore, ([*memory, *stored], stored))] == [
        "iteration 8 of round 1 is whole in memory but for shards 2-3, 5, which only the store has",
        "iteration 8 of round 1 is whole in the store",
    ]


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (JobSpec("j", {"worker": RoleSpec(0, 1)}), "nodes: 0"),
        (JobSpec("j", {"worker": RoleSpec(1, 2)}), "more than nodes"),
        (JobSpec("j", {"worker": RoleSpec(1, 1, 0)}), "slots: 0"),
        (JobSpec("../j", {"worker": RoleSpec(1, 1)}), "not a valid job name"),
        (JobSpec("j", {"Wor ker": RoleSpec(1, 1)}), "not a valid role name"),
        (JobSpec("j", {}), "at least one role"),
        (JobSpec("j", {"worker": RoleSpec(1, 1)}, Patience(cooldown_s=-1)), "cooldown_s"),
    ],
)
def test_a_spec_that_contradicts_itself_is_told_where(spec: JobSpec, word: str) -> None:
    assert any(word in line for line in problems(spec))
