"""Tells the master which worker failed, with what this machine knows of its end."""

import signal
import time
from collections.abc import Awaitable, Callable

import msgspec

from everstep.runtime.agent.client import MasterClient
from everstep.runtime.agent.master_dialogue import fault_message
from everstep.runtime.agent.progress_monitor import ProgressMonitor
from everstep.runtime.agent.worker_ends import WorkerEnd
from everstep.runtime.protocol.messages import Disconnected
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.system.kernel_log import KernelLog
from everstep.runtime.system.oom import OomCounter, own_counter_path

_KERNEL_S = 10.0
"""What the kernel said within this time before a worker's end may explain it."""


class FaultReports:
    """The reports of one node."""

    def __init__(
        self,
        node: str,
        client: MasterClient,
        progress: ProgressMonitor,
        flush: Callable[[], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        """`flush` sends the telemetry that waits."""
        self._node, self._client, self._progress, self._flush, self._say = node, client, progress, flush, say
        self.is_reporting = False
        """Whether the master has not answered a report yet."""
        self._iterations: dict[int, int] = {}
        self._has_told_disconnected = False
        self._finished = list[int]()
        self._oom = OomCounter(own_counter_path())
        self._kernel_log = KernelLog()

    def begin_round(self) -> None:
        """Forget what was of the last round."""
        self._iterations, self._has_told_disconnected, self._finished = {}, False, []
        self._oom.rose_since_last_call()

    def note_iteration(self, local_rank: int, iteration: int) -> None:
        """A worker has reported it."""
        self._iterations[local_rank] = iteration

    def note_finished(self, local_rank: int) -> None:
        """A worker has ended with exit code 0, while others perhaps have not."""
        self._finished.append(local_rank)

    async def report(self, seat: Seat, end: WorkerEnd, failed: frozenset[int]) -> None:
        """Report the end that broke the round; `failed`: all local ranks that failed by themselves."""
        iteration = self._iteration(end.local_rank)
        rank = seat.first_rank + end.local_rank
        oom = end.exit_code == -signal.SIGKILL and self._oom.rose_since_last_call()
        why = ", out of memory" if oom else ""
        was_killed = end.exit_code < 0
        kernel = self._kernel_log.messages(time.monotonic() - _KERNEL_S, end.pid) if was_killed else ()
        self._say(f"round {seat.round}: rank {rank} ended with exit code {end.exit_code}{why} at iteration {iteration}")
        report = fault_message(self._node, seat, end, failed, iteration, oom, kernel)
        died_at = end.time or time.time()
        await self._flush()  # The report may end the job, and then no master takes telemetry any more.
        self.is_reporting = True
        await self._client.report_fault(lambda: msgspec.structs.replace(report, ago_s=max(time.time() - died_at, 0.0)))
        self.is_reporting = False

    async def report_disconnected(self, seat: Seat, local_rank: int, error: str) -> None:
        """Report that a worker, which lives, has lost its connection to another rank; of each round the first."""
        rank = seat.first_rank + local_rank
        self._say(f"round {seat.round}: rank {rank} lost its connection to another rank: {error}")
        if self._has_told_disconnected:
            return
        self._has_told_disconnected = True
        for finished in sorted(self._finished):
            self._say(f"round {seat.round}: rank {seat.first_rank + finished} had left it with exit code 0")
        iteration = self._iteration(local_rank)
        await self._client.report_disconnected(Disconnected(self._node, seat.round, rank, iteration, error))

    def _iteration(self, local_rank: int) -> int:
        return max(self._progress.iteration(local_rank), self._iterations.get(local_rank, 0))

    def close(self) -> None:
        """Close the kernel's log."""
        self._kernel_log.close()
