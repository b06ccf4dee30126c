"""The iterations of a script that reports none, as its rank 0's board shows them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.agent.shown_iterations import ShownIteration, ShownIterations
from everstep.runtime.watch.board import RECENT
from everstep.runtime.watch.board_fields import Board


class Script:
    """What a board says of iterations of these seconds that follow each other."""

    def __init__(self) -> None:
        self.board: Board | None = Board(7, 0, 2, 0, 1, recent=(0.0,) * RECENT)
        self.told: list[ShownIteration] = []
        self.watch = ShownIterations(lambda: self.board, self.told.append)

    def train(self, *seconds: float, stall_s: float = 0.0, evaluation_s: float = 0.0) -> None:
        for iteration_s in seconds:
            board = self.board
            assert board is not None
            recent = list(board.recent)
            recent[(board.iteration + 1) % RECENT] = iteration_s if board.iteration else 0.0
            ended_at = (board.ended_at or 1000.0) + iteration_s
            self.board = board._replace(
                iteration=board.iteration + 1, ended_at=ended_at, recent=tuple(recent),
                first_ended_at=board.first_ended_at or ended_at,
            )  # fmt: skip
        assert self.board is not None
        spent = {"staging_s": self.board.staging_s + stall_s, "evaluation_s": self.board.evaluation_s + evaluation_s}
        self.board = self.board._replace(**spent)


def test_each_iteration_is_told_once_with_its_end_and_its_seconds() -> None:
    script = Script()
    script.watch.look()
    script.train(1.0)
    script.watch.look()
    script.watch.look()
    script.train(0.5, 0.25)
    script.watch.look()
    assert script.told == [
        ShownIteration(1, 1, 1001.0, 0.0), ShownIteration(1, 2, 1001.5, 0.5), ShownIteration(1, 3, 1001.75, 0.25)
    ]  # fmt: skip


def test_the_longest_iteration_of_a_look_has_its_save_and_its_evaluation() -> None:
    script = Script()
    script.train(1.0)
    script.watch.look()
    script.train(0.5, 4.0, 0.5, stall_s=1.0, evaluation_s=2.5)
    script.watch.look()
    assert [(iteration.iteration, iteration.stall_s, iteration.evaluation_s) for iteration in script.told[1:]] == [
        (2, 0.0, 0.0), (3, 1.0, 2.5), (4, 0.0, 0.0)
    ]  # fmt: skip


def test_many_iterations_of_one_look_are_one_line() -> None:
    script = Script()
    script.train(1.0)
    script.watch.look()
    script.train(*[0.125] * 40)
    script.watch.look()
    assert script.told[1:] == [ShownIteration(1, 41, 1006.0, 5.0, count=40)]


def test_the_first_iteration_of_many_is_told_alone_because_its_seconds_are_not_known() -> None:
    script = Script()
    script.train(*[0.125] * 41)
    script.watch.look()
    assert script.told == [ShownIteration(1, 1, 1000.125, 0.0), ShownIteration(1, 41, 1005.125, 5.0, count=40)]


def test_an_evaluation_that_began_after_the_newest_iteration_is_of_the_next_one() -> None:
    script = Script()
    script.train(1.0)
    script.watch.look()
    script.train(0.5, 0.25, evaluation_s=2.0)
    script.watch.look()
    script.train(2.0, 0.5)
    script.watch.look()
    assert [(iteration.iteration, iteration.evaluation_s) for iteration in script.told[1:]] == [
        (2, 0.5), (3, 0.25), (4, 1.25), (5, 0.0)
    ]  # fmt: skip


def test_another_process_counts_on_where_its_optimizer_has_come_to() -> None:
    script = Script()
    script.train(1.0, 1.0)
    script.watch.look()
    script.board = Board(
        8, 0, 2, 0, 2, iteration=1, earlier=2, ended_at=2000.0, recent=(0.0,) * RECENT, first_ended_at=2000.0
    )
    script.watch.look()
    assert script.told[-1] == ShownIteration(2, 3, 2000.0, 0.0)


@pytest.mark.parametrize("iterations", [0, 5])
def test_a_script_that_reports_by_itself_is_left_alone(iterations: int) -> None:
    script = Script()
    script.train(*[1.0] * iterations)
    script.board = None
    script.watch.look()
    assert script.told == []


@given(st.lists(st.lists(st.floats(0.0625, 4.0, width=32), max_size=9), max_size=12))
def test_however_often_one_looks_all_seconds_are_told(looks: list[list[float]]) -> None:
    script = Script()
    script.train(1.0)
    script.watch.look()
    for some in looks:
        script.train(*some)
        script.watch.look()
    told = script.told[1:]
    assert sum(iteration.seconds for iteration in told) == pytest.approx(sum(map(sum, looks)))
    assert [iteration.ended_at for iteration in told] == sorted(iteration.ended_at for iteration in told)
    assert (told[-1].iteration if told else 1) == 1 + sum(iteration.count for iteration in told)
    assert sum(iteration.count for iteration in told) == sum(map(len, looks))
