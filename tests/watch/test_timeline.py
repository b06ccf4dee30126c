"""The newest iterations of every rank as a Chrome trace, from boards that a worker's side has written."""

import json
from pathlib import Path

import pytest

from everstep.runtime.watch.board import RECENT, BoardWriter, read_board
from everstep.runtime.watch.board_fields import Board
from everstep.runtime.watch.timeline import chrome_trace, order_events


def board_after(path: Path, iterations: int) -> Board:
    """A board whose n-th iteration took n seconds and ended at time 1000 + n."""
    writer = BoardWriter(str(path), Board(1, 3, 4, 0, 2))
    for number in range(1, iterations + 1):
        writer.finish_iteration(float(number), 1000.0 + number)
    writer.set_phase("evaluation", 5000.0)
    board = read_board(path)
    assert board is not None
    return board


@pytest.mark.parametrize("iterations", [0, 1, 5, RECENT - 1, RECENT, RECENT + 1, 3 * RECENT + 7])
def test_each_iteration_has_its_own_seconds(tmp_path: Path, iterations: int) -> None:
    newest = order_events(board_after(tmp_path / "board", iterations))
    assert newest == [(number, float(number)) for number in range(iterations, max(iterations - RECENT, 0), -1)]


def test_the_first_iterations_time_is_not_known_nor_that_of_the_first_after_an_evaluation(tmp_path: Path) -> None:
    writer = BoardWriter(str(tmp_path / "board"), Board(1, 3, 4, 0, 2))
    shown = {}
    for number in range(1, 3 * RECENT):
        writer.finish_iteration(0.0 if number in (1, RECENT + 4) else float(number), 1000.0)
        found = read_board(tmp_path / "board")
        assert found is not None
        shown[number] = [iteration for iteration, _ in order_events(found)]
    assert shown[1] == shown[RECENT + 4] == []
    assert shown[5] == [5, 4, 3, 2]
    assert shown[RECENT + 6] == [RECENT + 6, RECENT + 5]
    assert len(shown[2 * RECENT + 4]) == RECENT


def test_a_process_that_goes_on_counts_from_the_beginning_of_the_training(tmp_path: Path) -> None:
    board = board_after(tmp_path / "board", 3)._replace(earlier=160)
    assert [number for number, _ in order_events(board)] == [163, 162, 161]


def test_iterations_follow_each_other_until_the_newest_ones_end_whatever_the_rank_does_since(
    tmp_path: Path,
) -> None:
    trace = json.loads(chrome_trace([("worker-1-0", board_after(tmp_path / "board", 3))]))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"]) for event in events] == [
        ("iteration 3", 1_000_000_000, 3_000_000),
        ("iteration 2", 998_000_000, 2_000_000),
        ("iteration 1", 997_000_000, 1_000_000),
    ]
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert names == {"worker-1-0", "rank 3"}
