"""The iterations of a script that does not report them: what rank 0's board shows, look after look."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from everstep.runtime.watch.board import RECENT
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
    count: int = 1
    """How many iterations these are."""


@dataclass
class ShownIterations:
    """Reports each iteration once."""

    board: Callable[[], Board | None]
    """Rank 0's; None: it is on another node, or its script reports by itself."""
    tell: Callable[[ShownIteration], None]
    _last: Board | None = None
    """As it was when the newest iteration was reported, with the saves and the evaluation that were reported."""

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
            if not board.iteration:
                return
            self.tell(ShownIteration(board.round, board.earlier + 1, board.first_ended_at, 0.0))
            last = board._replace(
                iteration=1, ended_at=board.first_ended_at,
                staging_s=board.first_staging_s, evaluation_s=board.first_evaluation_s,
            )  # fmt: skip
        shown = list(_between(last, board))
        for iteration in shown:
            self.tell(iteration)
        # What was spent beyond that, it spent after the newest iteration: that is of the next one.
        self._last = board._replace(
            staging_s=last.staging_s + sum(iteration.stall_s for iteration in shown),
            evaluation_s=last.evaluation_s + sum(iteration.evaluation_s for iteration in shown),
        )


def _between(last: Board, board: Board) -> Iterator[ShownIteration]:
    """The iterations from one look to the other. Each has at most its own seconds of their saves and their evaluation,
    the longest one first."""
    count, whole_s = board.iteration - last.iteration, board.ended_at - last.ended_at
    if count > _MOST_LINES:
        each_s, counts = [whole_s], [count]
    else:
        each_s = [board.recent[number % RECENT] for number in range(last.iteration + 1, board.iteration + 1)]
        counts = [1] * count
        if 0.0 in each_s:
            each_s[each_s.index(0.0)] = max(whole_s - sum(each_s), 0.0)
    spent = _share_out(each_s, board.staging_s - last.staging_s, board.evaluation_s - last.evaluation_s)
    for at, seconds in enumerate(each_s):
        place = board.round, board.number - sum(counts[at + 1 :]), board.ended_at - sum(each_s[at + 1 :])
        yield ShownIteration(*place, seconds, *spent[at], counts[at])


def _share_out(each_s: Sequence[float], stall_s: float, evaluation_s: float) -> Mapping[int, tuple[float, float]]:
    """How long each of these iterations saved and evaluated."""
    spent = {}
    stall_s, evaluation_s = max(stall_s, 0.0), max(evaluation_s, 0.0)  # Rounded sums of what was told before.
    for at in sorted(range(len(each_s)), key=lambda at: -each_s[at]):
        stall = min(stall_s, each_s[at])
        evaluation = min(evaluation_s, each_s[at] - stall)
        stall_s, evaluation_s = stall_s - stall, evaluation_s - evaluation
        spent[at] = stall, evaluation
    return spent
