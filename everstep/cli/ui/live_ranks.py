"""What each rank on this machine does at this moment, from the workers' boards."""

import time
from dataclasses import dataclass, field
from typing import Any

import psutil

from everstep.runtime.watch.find_workers import LocalWorker, local_workers
from everstep.runtime.watch.process_state import process_state
from everstep.runtime.watch.slow_ranks import pace, sentence, slow_ranks

WINDOW_S = 8.0
"""A rank's pace is that of the last seconds."""


@dataclass
class LiveRanks:
    """Looks at the ranks of one job; a pace needs two looks."""

    job: str
    _looks: list[tuple[float, dict[int, LocalWorker], dict[int, float]]] = field(default_factory=list)

    def look(self) -> dict[str, Any]:
        """`ranks`, by rank, and `slow`: one line about stragglers, or nothing."""
        at = time.monotonic()
        workers = {worker.board.rank: worker for worker in local_workers() if worker.board.job == self.job}
        states = {rank: process_state(worker.board.pid) for rank, worker in workers.items()}
        self._looks.append((at, workers, {rank: state.cpu_s for rank, state in states.items() if state is not None}))
        while len(self._looks) > 2 and self._looks[1][0] <= at - WINDOW_S:
            del self._looks[0]
        began, before, _ = self._looks[0]
        seconds = max(at - began, 1e-9)
        boards = {rank: worker.board for rank, worker in workers.items()}
        earlier = {rank: before[rank].board if rank in before else board for rank, board in boards.items()}
        paces = [pace(earlier[rank], board, seconds) for rank, board in boards.items()]
        slow = {rank_pace.rank for rank_pace in slow_ranks(paces)}
        rows = [
            self._row(
                workers[rank_pace.rank],
                rank_pace.iterations / seconds,
                rank_pace.waited if rank_pace.iteration_s else None,
                rank_pace.rank in slow,
            )
            for rank_pace in paces
        ]
        return {"ranks": rows, "slow": sentence(paces)}

    def _row(self, worker: LocalWorker, pace_hz: float, waited_s: float | None, is_slow: bool) -> dict[str, Any]:
        board = worker.board
        (first, _, cpu_before), (last, _, cpu_after) = self._looks[0], self._looks[-1]
        cpu_s = cpu_after.get(board.rank, 0.0) - cpu_before.get(board.rank, 0.0)
        try:
            memory = psutil.Process(board.pid).memory_info().rss
        except psutil.Error:
            memory = 0
        return {
            "rank": board.rank, "node": worker.node, "pid": board.pid, "round": board.round,
            "iteration": board.number, "phase": board.doing, "pace": round(pace_hz, 2),
            "waits": None if waited_s is None else round(waited_s, 3), "slow": is_slow,
            "cores": round(max(cpu_s, 0.0) / (last - first), 2) if last > first else 0.0, "memory": memory,
        }  # fmt: skip
