"""Whenever an agent looks at a plain script's board, the ledger says the same."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.agent.shown_iterations import ShownIteration, ShownIterations
from everstep.runtime.job.records import Reason
from everstep.runtime.report.activity import Activity
from everstep.runtime.report.node_lives import RoundLife
from everstep.runtime.report.round_seconds import RoundSeconds, Sums
from everstep.runtime.report.telemetry import read_telemetry
from everstep.runtime.watch.board import RECENT
from everstep.runtime.watch.board_fields import Board

BEGIN, START_S, END_S = 1000.0, 2.0, 0.125


class Work(NamedTuple):
    """An iteration of the script: it evaluates, trains, saves."""

    training_s: float
    evaluation_s: float = 0.0
    save_s: float = 0.0


class Script:
    """What a script's board says at each time."""

    def __init__(self, work: Sequence[Work]) -> None:
        self._boards = [(BEGIN, Board(7, 0, 1, 0, 1, recent=(0.0,) * RECENT))]
        self.end = BEGIN + START_S
        for number, (training_s, evaluation_s, save_s) in enumerate(work, 1):
            board, (self.end, began) = self._boards[-1][1], (self.end + evaluation_s, self.end)
            self._boards.append((self.end, board._replace(evaluation_s=board.evaluation_s + evaluation_s)))
            self.end += save_s
            self._boards.append((self.end, self.board(self.end)._replace(staging_s=board.staging_s + save_s)))
            self.end += training_s
            recent = list(board.recent)
            recent[number % RECENT] = self.end - began if number > 1 else 0.0
            board = self.board(self.end)._replace(iteration=number, ended_at=self.end, recent=tuple(recent))
            if number == 1:
                board = board._replace(
                    first_ended_at=self.end, first_staging_s=board.staging_s, first_evaluation_s=board.evaluation_s
                )
            self._boards.append((self.end, board))

    def board(self, now: float) -> Board:
        return next(board for time, board in reversed(self._boards) if time <= now)


def ledger_of(script: Script, looks: Sequence[float], iteration_before: int = 0) -> Sums:
    """Of a round in which the agent looked at these times and, at last, after the script had ended by an error."""
    shown: list[ShownIteration] = []
    times = iter((*looks, script.end))
    watch = ShownIterations(lambda: script.board(next(times)), shown.append)
    for _ in (*looks, script.end):
        watch.look()
    lines = [
        {
            "time": some.ended_at, "round": 1, "iteration": some.iteration, "iterations": some.count,
            "seconds": some.seconds, "stall_s": some.stall_s, "evaluation_s": some.evaluation_s,
        }
        for some in shown
    ]  # fmt: skip
    died = script.end + END_S
    life = RoundLife(1, BEGIN, ("a",), end=died, broken_by=Reason.USER_ERROR, death=(died, died))
    return RoundSeconds(life, read_telemetry(lines).points, iteration_before, died).sums(BEGIN, died)


PARTS = st.integers(1, 64).map(lambda parts: parts / 64)
WORK = st.builds(Work, PARTS, st.just(0.0) | PARTS, st.just(0.0) | PARTS)
TIMES = st.lists(st.floats(0, 1), max_size=40).map(sorted)


@given(st.lists(WORK, min_size=1, max_size=50), TIMES)
def test_the_ledger_is_the_same_whenever_one_looks(work: list[Work], times: list[float]) -> None:
    script = Script(work)
    sums = ledger_of(script, [BEGIN + at * (script.end - BEGIN) for at in times])
    assert {activity: seconds for activity, seconds in sums.items() if seconds} == pytest.approx(
        {
            activity: seconds
            for activity, seconds in {
                Activity.STARTUP: START_S + sum(work[0]),
                Activity.PRODUCTIVE: sum(some.training_s for some in work[1:]),
                Activity.EVALUATION: sum(some.evaluation_s for some in work[1:]),
                Activity.SAVE: sum(some.save_s for some in work[1:]),
                Activity.RECOMPUTED: END_S,
            }.items()
            if seconds
        }
    )


@given(st.integers(2, 60), st.integers(0, 70), TIMES)
def test_so_are_the_iterations_that_were_made_before(iterations: int, before: int, times: list[float]) -> None:
    script = Script([Work(0.25)] * iterations)
    sums = ledger_of(script, [BEGIN + at * (script.end - BEGIN) for at in times], before)
    again = min(max(before - 1, 0), iterations - 1)
    assert sums[Activity.RECOMPUTED] == pytest.approx(0.25 * again + END_S)
    assert sums.get(Activity.PRODUCTIVE, 0.0) == pytest.approx(0.25 * (iterations - 1 - again))
