"""--event-log-handler: torch's events of a launch, as `torch.distributed.elastic.agent.server.api` records them.

Each event is a line of JSON. In every round: RENDEZVOUS and ASSIGN_WORKER_RANKS with their duration, and each worker's
START. At the end: each worker's SUCCEEDED, FAILED or TERMINATED, then the agent's own. (The master assigns ranks
together with the seat, so ASSIGN_WORKER_RANKS takes no time here.)
"""

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from everstep.runtime.agent.worker_ends import WorkerEnd
from everstep.runtime.protocol.rounds import Seat

AGENT, WORKER = "AGENT", "WORKER"


def logger_of(handler: str) -> logging.Logger | None:
    """The logger for the events; None: they are dropped. Raises ValueError for a name that torch does not know.

    For names other than null and console torch's own table is consulted, because a torch plug-in may have added a
    handler.
    """
    if handler == "null":
        return None
    handler_object: logging.Handler
    if handler == "console":
        handler_object = logging.StreamHandler()
    else:
        try:
            from torch.distributed.elastic.events.handlers import get_logging_handler

            handler_object = get_logging_handler(handler)
        except (ImportError, KeyError):
            why = "torch has no handler of this name; use null or console"
            raise ValueError(f"--event-log-handler {handler}: {why}") from None
    logger = logging.Logger(f"torchelastic-events-{handler}", os.environ.get("LOGLEVEL", "INFO").upper())
    logger.addHandler(handler_object)
    return logger


@dataclass(frozen=True)
class LaunchMetadata:
    """The fields that all events of a node's launch share."""

    run_id: str
    role: str
    backend: str
    entry_point: str


class EventLog:
    """Writes the events of one node."""

    def __init__(
        self, logger: logging.Logger | None, about: LaunchMetadata, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._about = about
        self._clock = clock
        self._began = clock()
        self._run_s = 0
        self._restarts = 0
        self._seat: Seat | None = None
        self._pids: dict[int, int] = {}
        self._started = 0
        self._host = socket.getfqdn(socket.gethostname()) if logger else ""

    def record_seat(self, seat: Seat, seconds: float) -> None:
        """The node got a seat in a round after waiting `seconds`."""
        self._restarts = seat.restart_count
        self._record("RENDEZVOUS", AGENT, duration_ms=seconds * 1000)
        self._record("ASSIGN_WORKER_RANKS", AGENT, duration_ms=0.0)
        self._seat, self._pids, self._started = seat, {}, 0

    def record_start(self, local_rank: int, pid: int) -> None:
        """A worker of the round has started. Workers start in any order; torchrun tells their starts by local rank."""
        self._pids[local_rank] = pid
        while self._started in self._pids:
            self._record("START", WORKER, self._started)
            self._started += 1

    def record_end(self, failures: Sequence[WorkerEnd], has_failed: bool, broken_off: str) -> None:
        """The node is done.

        Args:
            failures: its workers that failed, if the job failed.
            has_failed: the job failed.
            broken_off: why the node ended before its job; empty when it did not.
        """
        self._run_s = int(self._clock() - self._began)
        if broken_off:
            self._record("FAILED", AGENT, raw_error=broken_off)
            return
        ends = {end.local_rank: end for end in failures}
        for local_rank in sorted(self._pids):
            end = ends.get(local_rank)
            if end is None:
                self._record("TERMINATED" if has_failed else "SUCCEEDED", WORKER, local_rank)
            else:
                raw = json.dumps(_error_data(end))
                self._record("FAILED", WORKER, local_rank, raw_error=raw, exit_code=end.exit_code, worker_pid=end.pid)
        self._record("SUCCEEDED", AGENT)

    def _record(
        self,
        state: str,
        source: str,
        local_rank: int = -1,
        *,
        raw_error: str | None = None,
        duration_ms: float | None = None,
        exit_code: int | None = None,
        worker_pid: int | None = None,
    ) -> None:
        if self._logger is None:
            return
        seat, about = self._seat, self._about
        more: dict[str, Any] = {
            "group_world_size": seat.group_world_size if seat else None,
            "entry_point": about.entry_point,
        }
        rank = None
        if seat is not None and source == WORKER:
            rank = seat.first_rank + local_rank
            more |= {
                "local_rank": [local_rank],
                "role_rank": [seat.role_first_rank + local_rank],
                "role_world_size": [seat.role_world_size],
                "exit_code": [exit_code],
                "worker_pid": [worker_pid],
            }
        metadata = {
            "run_id": about.run_id,
            "global_rank": rank,
            "group_rank": seat.group_rank if seat else None,
            "worker_id": None if rank is None else str(self._pids[local_rank]),
            "role": about.role,
            "hostname": self._host,
            "state": state,
            "total_run_time": self._run_s,
            "rdzv_backend": about.backend,
            "raw_error": raw_error,
            "metadata": json.dumps(more),
            "agent_restarts": self._restarts,
            "duration_ms": duration_ms,
        }
        event = {"name": f"torchelastic.worker.status.{state}", "source": source, "timestamp": 0, "metadata": metadata}
        self._logger.info(json.dumps(event))


def _error_data(end: WorkerEnd) -> Mapping[str, Any]:
    """The error as `torch.distributed.elastic.multiprocessing.errors.ProcessFailure` renders it."""
    with suppress(ValueError):
        return json.loads(end.reply)
    traits = {"category": "system_terminated_error", "retryability": "False"}
    return {"message": "<NONE>", **({"errorTraits": traits} if end.exit_code >= 0 else {})}
