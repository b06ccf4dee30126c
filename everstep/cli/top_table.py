"""What `everstep top` shows: the ranks of a machine between two readings of their boards, the kernel and the driver."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import psutil

from everstep.runtime.display.terminal import as_text
from everstep.runtime.job.status import job_status
from everstep.runtime.journal.journal import JournalError, read_state
from everstep.runtime.platform.devices import machine_devices, may_have_devices
from everstep.runtime.protocol.worker_link import LOCAL_RANK_VARIABLE
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
        """Read these workers, whose boards were read just now. `nvml`: of `devices_of`."""
        now = time.monotonic()
        pids = [worker.board.pid for worker in workers]
        states = {pid: process_state(pid) for pid in pids}
        cpu_s = {pid: state.cpu_s for pid, state in states.items() if state is not None}
        devices = {worker.board.pid: device for worker in workers if (device := _device(worker, nvml))}
        return cls(now, workers, cpu_s, devices)


def devices_of() -> Any:
    """The driver, to be asked for devices; None: this machine has none, or no way to ask."""
    try:
        return open_nvml() if may_have_devices(os.environ) else None
    except NoReadingsError:
        return None


class RankRow(msgspec.Struct, frozen=True):
    """What a rank did between two readings."""

    node: str
    pid: int
    round: int
    iteration: int
    """The newest one."""
    pace_hz: float
    """Iterations per second."""
    stall: float
    """Share of the time that saves kept it from training, 0 to 1."""
    cores: float
    memory_bytes: int | None
    """None: not known."""
    device: str
    phase: str
    tokens_hz: float | None
    """Tokens per second of all ranks together; None: this one reports none."""
    pace: Pace

    @property
    def rank(self) -> int:
        """Its rank."""
        return self.pace.rank


class Window(msgspec.Struct, frozen=True):
    """The ranks of a job between two readings."""

    job: str
    world_size: int
    ranks: tuple[RankRow, ...]


_WINDOW = msgspec.json.Decoder(Window)


def window(before: Reading, after: Reading) -> Window:
    """What the workers of a machine, of which there are some, did between two readings."""
    seconds = max(after.at - before.at, 1e-9)
    boards = {worker.board.rank: worker.board for worker in before.workers}
    rows = list[RankRow]()
    for worker in after.workers:
        board = worker.board
        earlier = boards.get(board.rank, board)
        own_pace = pace(earlier, board, seconds)
        if (earlier.pid, earlier.round) != (board.pid, board.round):
            earlier = board
        cores = max(after.cpu_s.get(board.pid, 0.0) - before.cpu_s.get(board.pid, 0.0), 0.0) / seconds
        rows.append(
            RankRow(
                node=worker.node,
                pid=board.pid,
                round=board.round,
                iteration=board.number,
                pace_hz=own_pace.iterations / seconds,
                stall=min((board.staging_s - earlier.staging_s) / seconds, 1.0),
                cores=cores,
                memory_bytes=_memory_bytes(board.pid),
                device=_device_text(after.devices.get(board.pid)),
                phase=board.doing,
                tokens_hz=max(board.tokens - earlier.tokens, 0.0) / seconds if board.tokens else None,
                pace=own_pace,
            )
        )
    first = after.workers[0].board
    return Window(first.job, first.world_size, tuple(rows))


def join_windows(texts: Iterable[str]) -> Window | None:
    """All ranks of a job, from what each of its machines has said as JSON; None: nothing."""
    windows = [_WINDOW.decode(text) for text in texts if text.strip()]
    if not windows:
        return None
    ranks = sorted((row for some in windows for row in some.ranks), key=lambda row: row.rank)
    return msgspec.structs.replace(windows[0], ranks=tuple(ranks))


def table(shown: Window, here: str = "") -> str:
    """The job in one line, a line for each rank, and who is slow. `here`: says that other machines may have more."""
    paces = [row.pace for row in shown.ranks]
    rows = [_HEAD, *map(_cells, shown.ranks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([_summary(shown, here), *lines, *filter(None, [sentence(paces)])])


def last_event(store: str, job: str) -> str:
    """The newest event of the job, from its journal in that store."""
    try:
        status = job_status(read_state(open_store(store, read_only=True), job))
        condition = status["conditions"][-1]
    except (StoreError, JournalError, ValueError, IndexError) as error:
        return f"last event: unknown: {error}"
    return f"last event: {condition['lastTransitionTime']} {condition['type']}: {as_text(condition['message'])}"


def has_ended(store: str, job: str) -> bool:
    """Whether the job's journal in that store says that it has ended."""
    try:
        return read_state(open_store(store, read_only=True), job).ended is not None
    except (StoreError, JournalError, ValueError):
        return False


def _summary(shown: Window, here: str) -> str:
    nodes, tokens = (
        {row.node for row in shown.ranks},
        [row.tokens_hz for row in shown.ranks if row.tokens_hz is not None],
    )
    parts = [
        f"iteration {max(row.iteration for row in shown.ranks)}",
        f"{max(row.pace_hz for row in shown.ranks):.2f} iterations/s",
        f"{sum(tokens):,.0f}".replace(",", " ") + " tokens/s" if tokens else "tokens/s not reported",
        f"{len(shown.ranks)} of {shown.world_size} ranks{here}",
        f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}{here}",
    ]
    return f"{shown.job}: {', '.join(parts)}"


def _cells(row: RankRow) -> tuple[str, ...]:
    memory = "-" if row.memory_bytes is None else f"{row.memory_bytes / (1 << 20):.0f} MiB"
    return (
        str(row.rank), row.node, str(row.pid), str(row.round), str(row.iteration), f"{row.pace_hz:.2f}",
        f"{row.pace.waited * 100:.0f} %" if row.pace.iteration_s else "-", f"{row.stall * 100:.1f} %",
        f"{row.cores:.2f}", memory, row.device, as_text(row.phase) or "-",
    )  # fmt: skip


def _memory_bytes(pid: int) -> int | None:
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return None


def _device(worker: LocalWorker, nvml: Any) -> DeviceReading | None:
    """That of its local rank among those with which its process was started: its node's, or its own alone. None: it
    uses none, or the driver does not say."""
    if nvml is None:
        return None
    try:
        environment = psutil.Process(worker.board.pid).environ()
        at = 0 if LOCAL_RANK_VARIABLE in environment else worker.board.local_rank
        readings = read_devices(nvml, machine_devices(environment)[at : at + 1])
    except (psutil.Error, NoReadingsError):
        return None
    return readings[0] if readings else None


def _device_text(device: DeviceReading | None) -> str:
    if device is None:
        return "-"
    memory = f"{device.used_bytes / (1 << 30):.0f} of {device.total_bytes / (1 << 30):.0f} GiB"
    busy = [] if device.busy is None else [f"{device.busy * 100:.0f} %"]
    return ", ".join([*busy, memory, *(device.lowered or ())])
