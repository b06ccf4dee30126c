"""What `everstep top` shows of one look at the ranks of this machine: from their boards, the kernel and the driver."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import psutil

from everstep.runtime.job.status import job_status
from everstep.runtime.journal.journal import JournalError, read_state
from everstep.runtime.platform.devices import machine_devices
from everstep.runtime.store import StoreError, open_store
from everstep.runtime.system.gpu_readings import DeviceReading, NoReadingsError, open_nvml, read_devices
from everstep.runtime.watch.find_workers import LocalWorker
from everstep.runtime.watch.process_state import process_state
from everstep.runtime.watch.slow_ranks import Pace, pace, sentence

_HEAD = ("RANK", "NODE", "PID", "ROUND", "ITERATION", "ITER/S", "WAITS", "STALL", "CORES", "MEMORY", "DEVICE", "PHASE")


@dataclass(frozen=True)
class Reading:
    """What was read of the workers at one moment."""

    at: float
    """Seconds of the monotonic clock."""
    workers: Sequence[LocalWorker]
    cpu_s: Mapping[int, float]
    """By pid."""
    devices: Mapping[int, DeviceReading]
    """By pid."""

    @classmethod
    def take(cls, workers: Sequence[LocalWorker], nvml: Any) -> Self:
        """Read these workers now. `nvml`: of `devices_of`."""
        pids = [worker.board.pid for worker in workers]
        states = {pid: process_state(pid) for pid in pids}
        cpu_s = {pid: state.cpu_s for pid, state in states.items() if state is not None}
        devices = {worker.board.pid: device for worker in workers if (device := _device(worker, nvml))}
        return cls(time.monotonic(), workers, cpu_s, devices)


def devices_of() -> Any:
    """The driver, to be asked for devices; None: this machine has none, or no way to ask."""
    try:
        return open_nvml() if machine_devices(os.environ) else None
    except NoReadingsError:
        return None


def table(before: Reading, after: Reading) -> str:
    """The job in one line, a line for each rank, and who is slow."""
    seconds = max(after.at - before.at, 1e-9)
    boards = {worker.board.rank: worker.board for worker in before.workers}
    paces = [pace(boards.get(one.board.rank, one.board), one.board, seconds) for one in after.workers]
    rows: list[tuple[str, ...]] = [_HEAD]
    for worker, one in zip(after.workers, paces, strict=True):
        earlier = boards.get(one.rank, worker.board)
        is_same = (earlier.pid, earlier.round) == (worker.board.pid, worker.board.round)
        stall_s = worker.board.staging_s - (earlier.staging_s if is_same else worker.board.staging_s)
        cores = max(after.cpu_s.get(worker.board.pid, 0.0) - before.cpu_s.get(worker.board.pid, 0.0), 0.0) / seconds
        rows.append(_row(worker, one, (stall_s / seconds, cores), seconds, after.devices.get(worker.board.pid)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([_summary(before, after, paces, seconds), *lines, *filter(None, [sentence(paces)])])


def last_event(reading: Reading) -> str:
    """The newest event of the job, from its journal."""
    board = reading.workers[0].board
    try:
        status = job_status(read_state(open_store(board.store, read_only=True), board.job))
        condition = status["conditions"][-1]
    except (StoreError, JournalError, ValueError, IndexError) as error:
        return f"last event: unknown: {error}"
    return f"last event: {condition['lastTransitionTime']} {condition['type']}: {condition['message']}"


def _summary(before: Reading, after: Reading, paces: Sequence[Pace], seconds: float) -> str:
    first, nodes = after.workers[0].board, {worker.node for worker in after.workers}
    tokens = sum(worker.board.tokens for worker in after.workers) - sum(
        worker.board.tokens for worker in before.workers
    )
    has_tokens = any(worker.board.tokens for worker in after.workers)
    parts = [
        f"iteration {max(worker.board.number for worker in after.workers)}",
        f"{max(one.iterations for one in paces) / seconds:.2f} iterations/s",
        f"{max(tokens, 0.0) / seconds:,.0f}".replace(",", " ") + " tokens/s" if has_tokens else "tokens/s not reported",
        f"{len(after.workers)} of {first.world_size} ranks here",
        f"{len(nodes)} node{'' if len(nodes) == 1 else 's'} here",
    ]
    return f"{first.job}: {', '.join(parts)}"


def _row(
    worker: LocalWorker, one: Pace, stall_and_cores: tuple[float, float], seconds: float, device: DeviceReading | None
) -> tuple[str, ...]:
    board, (stall, cores) = worker.board, stall_and_cores
    try:
        memory = f"{psutil.Process(board.pid).memory_info().rss / (1 << 20):.0f} MiB"
    except psutil.Error:
        memory = "-"
    return (
        str(board.rank), worker.node, str(board.pid), str(board.round), str(board.number),
        f"{one.iterations / seconds:.2f}", f"{one.waited * 100:.0f} %" if one.iteration_s else "-",
        f"{min(stall, 1.0) * 100:.1f} %", f"{cores:.2f}", memory, _device_text(device), board.phase or "-",
    )  # fmt: skip


def _device(worker: LocalWorker, nvml: Any) -> DeviceReading | None:
    """That of its local rank among those which its node sees; None: it uses none, or the driver does not say."""
    if nvml is None:
        return None
    try:
        names = machine_devices(psutil.Process(worker.board.pid).environ())
        readings = read_devices(nvml, names[worker.board.local_rank : worker.board.local_rank + 1])
    except (psutil.Error, NoReadingsError):
        return None
    return readings[0] if readings else None


def _device_text(device: DeviceReading | None) -> str:
    if device is None:
        return "-"
    memory = f"{device.used_bytes / (1 << 30):.0f} of {device.total_bytes / (1 << 30):.0f} GiB"
    return ", ".join([f"{device.busy * 100:.0f} %", memory, *device.lowered])
