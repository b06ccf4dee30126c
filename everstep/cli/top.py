"""`everstep top [RUN]`: what the ranks on this machine do, again and again: iterations, waiting, CPU, memory."""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from everstep.cli.stacks import workers_of
from everstep.errors import BadInput
from everstep.flags import Flag, add_action

if TYPE_CHECKING:
    from everstep.runtime.watch.find_workers import LocalWorker
    from everstep.runtime.watch.slow_ranks import Pace


@dataclass(frozen=True)
class Top:
    """Show what each rank on this machine does, until Ctrl-C or the job's end: which one the others wait for."""

    job: Annotated[str, Flag(metavar="RUN[/STEP]", is_positional=True)] = ""
    """A run (and its train step if it has several), or a job of `everstep launch`. Default: the only one here."""
    every: float = 3.0
    """Seconds between two readings; slow ranks are judged over this window."""
    times: int = 0
    """Number of readings; 0: until the job ends."""
    timeline: Path | None = None
    """Write each rank's newest iterations there as a Chrome trace (for ui.perfetto.dev), and exit."""
    runs: Path = Path("runs")
    """Directory of the run folders."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Top, run)
    parser.epilog = "examples: everstep top; everstep top llama-finetune-x7k2 --every 10 --times 1"


def run(flags: Top) -> int:
    """Print a table for each look; returns the exit code. Raises BadInput."""
    if not 2 <= flags.every <= 3600 or flags.times < 0:
        raise BadInput(f"--every {flags.every:g} --times {flags.times}: give 2 to 3600 seconds, and a number from 0 on")
    before, readings = workers_of(flags.runs, flags.job), 0
    if flags.timeline is not None:
        return _write_timeline(before, flags.timeline)
    try:
        while not flags.times or readings < flags.times:
            began = time.monotonic()
            cpu_before = _cpu_s(before)
            time.sleep(flags.every)
            try:
                after = workers_of(flags.runs, flags.job or before[0].board.job)
            except BadInput:
                break  # It has ended.
            print(_clear(readings) + table(before, after, cpu_before, time.monotonic() - began), flush=True)
            before, readings = after, readings + 1
    except KeyboardInterrupt:
        pass
    return 0


def _write_timeline(workers: "list[LocalWorker]", path: Path) -> int:
    from everstep.runtime.watch.timeline import chrome_trace

    try:
        path.write_text(chrome_trace([(worker.node, worker.board) for worker in workers]))
    except OSError as error:
        raise BadInput(f"--timeline {path}: {error.strerror}") from None
    print(f"{path}: open it in ui.perfetto.dev", file=sys.stderr)
    return 0


def _clear(readings: int) -> str:
    if sys.stdout.isatty():
        return "\x1b[2J\x1b[H"
    return "\n" if readings else ""


def _cpu_s(workers: "list[LocalWorker]") -> dict[int, float]:
    from everstep.runtime.watch.process_state import process_state

    states = {worker.board.pid: process_state(worker.board.pid) for worker in workers}
    return {pid: state.cpu_s for pid, state in states.items() if state is not None}


def table(before: "list[LocalWorker]", after: "list[LocalWorker]", cpu_before: dict[int, float], seconds: float) -> str:
    """One look as text."""
    from everstep.runtime.watch.slow_ranks import pace, sentence

    boards = {worker.board.rank: worker.board for worker in before}
    paces = [pace(boards.get(worker.board.rank, worker.board), worker.board, seconds) for worker in after]
    cpu_after = _cpu_s(after)
    rows = [["RANK", "NODE", "PID", "ROUND", "ITERATION", "ITER/S", "WAITS", "CORES", "MEMORY", "PHASE"]]
    for worker, own_pace in zip(after, paces, strict=True):
        cores = max(cpu_after.get(worker.board.pid, 0.0) - cpu_before.get(worker.board.pid, 0.0), 0.0) / seconds
        rows.append(_row(worker, own_pace, cores, seconds))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *filter(None, [sentence(paces)])])


def _row(worker: "LocalWorker", pace: "Pace", cores: float, seconds: float) -> list[str]:
    import psutil

    board = worker.board
    try:
        memory = f"{psutil.Process(board.pid).memory_info().rss / (1 << 20):.0f} MiB"
    except psutil.Error:
        memory = "-"
    waits = f"{pace.waited * 100:.0f} %" if pace.iteration_s else "-"
    numbers = [str(board.rank), worker.node, str(board.pid), str(board.round), str(board.iteration)]
    return [*numbers, f"{pace.iterations / seconds:.2f}", waits, f"{cores:.2f}", memory, board.phase or "-"]
