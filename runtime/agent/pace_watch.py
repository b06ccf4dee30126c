"""Measures a node's workers over windows: how long each trains, waits for the others, for data, for its machine."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from everstep.runtime.system.tcp_sockets import sockets_of, tcp_sockets
from everstep.runtime.watch.board_fields import Board
from everstep.runtime.watch.process_state import main_thread_state, process_state
from everstep.runtime.watch.slow_ranks import HostUse, Pace, pace

WINDOW_S = 10.0
_LOOK_S = 0.25
_EVALUATIONS = frozenset({"evaluation", "eval", "validation"})
"""What a rank does alone there says nothing about its pace."""


@dataclass
class _Look:
    """What was known of a worker when the window began, and what was seen since."""

    board: Board
    use: HostUse
    looks: int = 0
    in_kernel: int = 0
    evaluated: bool = False


@dataclass
class PaceWatch:
    """The paces of one node's workers; `run` keeps them going."""

    boards: Callable[[], Mapping[int, Board]]
    """By local rank: those that run."""
    clock: Callable[[], float]
    lowered: Callable[[], str] = str
    """Why the clocks of the node's devices are lowered; empty if they are not."""
    _began_at: float = 0.0
    _looks: dict[int, _Look] = field(default_factory=dict)
    _paces: tuple[Pace, ...] = ()

    def take(self) -> tuple[Pace, ...]:
        """The newest window, once; the next heartbeat takes it along."""
        paces, self._paces = self._paces, ()
        return paces

    async def run(self) -> None:
        """Measure window after window, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        """Look at all workers; ends a window whose time is over."""
        now, boards = self.clock(), self.boards()
        for local_rank, one in list(self._looks.items()):
            board = boards.get(local_rank)
            if board is None or (board.pid, board.round) != (one.board.pid, one.board.round):
                self._looks.clear()  # Another round: the window starts again.
                break
            one.looks += 1
            one.in_kernel += main_thread_state(board.pid) == "D"
            one.evaluated |= board.phase in _EVALUATIONS
        if not any(one.board.iteration for one in self._looks.values()) and any(
            one.iteration for one in boards.values()
        ):
            self._looks.clear()  # The training begins, and with it the first window.
        if not self._looks or now >= self._began_at + WINDOW_S:
            self._end_window(boards, now)

    def _end_window(self, boards: Mapping[int, Board], now: float) -> None:
        seconds, sockets = now - self._began_at, tcp_sockets()
        after, paces = {}, []
        for local_rank, board in boards.items():
            state, own = process_state(board.pid), sockets_of(board.pid, sockets)
            # Within the machine nothing is lost: what is sent again there tells of a process that did not run.
            far = [one for one in own if not one.remote.startswith(("127.", "[::1]"))]
            after[local_rank] = HostUse(
                state.cpu_wait_s if state else 0.0, 0.0, state.major_faults if state else 0,
                sum(one.resent for one in far), max((one.rtt_s for one in far), default=0.0),
            )  # fmt: skip
            if (one := self._looks.get(local_rank)) is not None and one.looks:
                in_kernel_s = seconds * one.in_kernel / one.looks
                use = after[local_rank].since(one.use)._replace(disk_wait_s=in_kernel_s)
                paces.append(
                    Pace(board.rank, 0, 0, 0.0, 0.0) if one.evaluated
                    else pace(one.board, board, seconds, use, self.lowered())
                )  # fmt: skip
        self._began_at = now
        self._looks = {local_rank: _Look(board, after[local_rank]) for local_rank, board in boards.items()}
        self._paces = tuple(paces) or self._paces
