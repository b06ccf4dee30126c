"""The boards on which this round's workers show what they do."""

from dataclasses import dataclass
from pathlib import Path

from everstep.runtime.agent.dependencies import AgentStatus
from everstep.runtime.agent.worker_server import LinkServer
from everstep.runtime.agent.worker_specs import board_path
from everstep.runtime.agent.workers import Workers
from everstep.runtime.watch.board import read_board
from everstep.runtime.watch.board_fields import Board


@dataclass(frozen=True)
class RoundBoards:
    """Those of one node, whose private folder has them."""

    folder: Path
    status: AgentStatus
    workers: Workers
    link: LinkServer

    def read(self, local_rank: int) -> Board | None:
        """That worker's, of whatever round; None: it has none yet."""
        return read_board(board_path(self.folder, local_rank))

    def of_running(self) -> dict[int, Board]:
        """By local rank, of the workers that run."""
        seat = self.status.seat
        boards = {local_rank: self.read(local_rank) for local_rank in self.workers.pids()}
        return {at: board for at, board in boards.items() if board and seat and board.round == seat.round}

    def unreported(self) -> Board | None:
        """Rank 0's, if it is a worker of this node and its script has not called everstep."""
        seat = self.status.seat
        if seat is None or seat.first_rank or self.link.has_greeted:
            return None
        board = self.read(0)
        return board if board and board.round == seat.round else None
