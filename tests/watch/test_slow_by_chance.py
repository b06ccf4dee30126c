"""Ranks that are alike: how often chance alone makes one look slow, with the samples and windows of real workers."""

import random

import pytest

from everstep.runtime.agent.pace_watch import WINDOW_S
from everstep.runtime.job.slow_nodes import SEEN_WINDOWS
from everstep.runtime.watch.board_fields import Board
from everstep.runtime.watch.in_worker import pause_s
from everstep.runtime.watch.slow_ranks import Pace, pace, slow_ranks

HOUR_S, MOST = 3600.0, 1e-3
"""So probable may an alarm within an hour be."""
SHARES = (0.05, 0.2, 0.4, 0.6)
"""Of an iteration that a rank does not spend in collectives. Above, no rank can be slow by 1.5."""


def board(chance: random.Random, rank: int, iteration_s: float, own: float) -> Board:
    """A board after one window: the sampler's looks at a rank that begins anywhere in an iteration."""
    began, at, samples, waits = chance.uniform(0, iteration_s), 0.0, 0, 0
    while (at := at + pause_s(chance)) < WINDOW_S:
        samples += 1
        waits += (began + at) % iteration_s >= own * iteration_s
    iterations = int((began + WINDOW_S) / iteration_s)
    return Board(7, rank, 64, rank, 1, iteration=iterations, samples=samples, waits=waits)


def window(chance: random.Random, iteration_s: float, owns: tuple[float, ...]) -> list[Pace]:
    """What a window tells of ranks with these shares of their own."""
    boards = [board(chance, rank, iteration_s, own) for rank, own in enumerate(owns)]
    return [pace(Board(7, board.rank, 64, board.rank, 1), board, WINDOW_S) for board in boards]


def in_an_hour(share: float) -> float:
    """How probable `SEEN_WINDOWS` such windows in a row are within an hour. As if all ranks were on one node."""
    return 1 - (1 - share**SEEN_WINDOWS) ** (HOUR_S / WINDOW_S)


def alarms(chance: random.Random, windows: int, iteration_s: float, owns: tuple[float, ...]) -> float:
    """The share of windows in which a rank is slow."""
    return sum(bool(slow_ranks(window(chance, iteration_s, owns))) for _ in range(windows)) / windows


@pytest.mark.parametrize("iteration_s", [0.02, 0.2, 1.0, 3.3])
@pytest.mark.parametrize(("ranks", "windows"), [(2, 1600), (8, 800), (64, 300)])
def test_an_hour_of_ranks_that_are_alike_names_nobody(ranks: int, windows: int, iteration_s: float) -> None:
    for own in SHARES:
        share = alarms(random.Random(ranks), windows, iteration_s, (own,) * ranks)
        assert in_an_hour(share) <= MOST, f"own {own}: slow in {share:.2%} of the windows"


@pytest.mark.parametrize(
    ("slow", "usual", "windows"), [(1.0, 0.33, 1.0), (1.0, 0.5, 0.95), (0.6, 0.2, 0.7), (0.8, 0.4, 0.7)]
)
def test_a_rank_that_is_slow_is_seen_in_most_windows(slow: float, usual: float, windows: float) -> None:
    assert alarms(random.Random(3), 400, 0.2, (usual, usual, slow)) >= windows
