"""`everstep top [RUN]`: what the ranks on this machine do, again and again. `top_table` has what is shown."""

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


@dataclass(frozen=True)
class Top:
    """Show what each rank on this machine does, until Ctrl-C or the job's end: its pace, which one the others wait for,
    stalls by saves, CPU, memory, device; the job's tokens per second and its newest event."""

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
    workers, readings = workers_of(flags.runs, flags.job), 0
    if flags.timeline is not None:
        return _write_timeline(workers, flags.timeline)
    from everstep.cli.top_table import Reading, devices_of, last_event, table

    devices, job = devices_of(), workers[0].board.job
    before = Reading.take(workers, devices)
    try:
        while not flags.times or readings < flags.times:
            time.sleep(flags.every)
            try:
                after = Reading.take(workers_of(flags.runs, flags.job or job), devices)
            except BadInput:
                break  # It has ended.
            print(_clear(readings) + "\n".join([table(before, after), last_event(after)]), flush=True)
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
