"""The iterations of a script that does not report them: what rank 0's board shows, look after look."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from everstep.runtime.watch.board_fields import Board

_LOOK_S = 0.25
_MOST_LINES = 4
"""Iterations of one look that are reported one by one; more become one line, with the seconds of all."""


class ShownIteration(NamedTuple):
    """An iteration, or several that ended between two looks: then the newest, with the seconds of all."""

    round: int
    iteration: int
    ended_at: float
    """Unix time."""
    seconds: float
    """0: not known, as of a process's first one."""
    stall_s: float = 0.0
    """Of these seconds: saves."""
    evaluation_s: float = 0.0


@dataclass
class ShownIterations:
    """Reports each iteration once."""

    board: Callable[[], Board | None]
    """Rank 0's; None: it is on another node, or its script reports by itself."""
    tell: Callable[[ShownIteration], None]
    _last: Board | None = None
    """As it was when the newest iteration was reported."""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        """Report what has ended since the last look."""
        board, last = self.board(), self._last
        if board is None:
            return
        if last is None or (last.pid, last.round) != (board.pid, board.round):
            last = Board(board.pid, board.rank, board.world_size, board.local_rank, board.round)
        if board.iteration > last.iteration:
            for iteration in _between(last, board):
                self.tell(iteration)
            self._last = board


def _between(last: Board, board: Board) -> Iterator[ShownIteration]:
    """The iterations from one look to the other. The longest one has their stall and their evaluation."""
    count = board.iteration - last.iteration
    whole_s = board.ended_at - last.ended_at if last.ended_at else 0.0
    stall_s, evaluation_s = board.staging_s - last.staging_s, board.evaluation_s - last.evaluation_s
    if count > _MOST_LINES:
        seconds = whole_s or sum(board.recent)
        yield ShownIteration(board.round, board.number, board.ended_at, seconds, stall_s, evaluation_s)
        return
    each_s = [board.recent[number % len(board.recent)] for number in range(last.iteration + 1, board.iteration + 1)]
    if whole_s and 0.0 in each_s:
        each_s[each_s.index(0.0)] = max(whole_s - sum(each_s), 0.0)
    longest = each_s.index(max(each_s))
    for at, seconds in enumerate(each_s):
        place = board.round, board.number - count + at + 1, board.ended_at - sum(each_s[at + 1 :])
        yield ShownIteration(*place, seconds, *((stall_s, evaluation_s) if at == longest else ()))
