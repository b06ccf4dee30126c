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

PROFILE_S = 120.0
"""So long the ranks have for the iterations that --profile asks for."""

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
    profile: Path | None = None
    """Have torch's profiler record each rank's next three iterations (operators, and a GPU's kernels), write a Chrome
    trace of each there, and exit."""
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
    if flags.profile is not None:
        return _write_profiles(workers, flags.profile)
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


def _write_profiles(workers: "list[LocalWorker]", folder: Path) -> int:
    """Ask all at once; a rank that does not answer is said."""
    from everstep.runtime.watch.kernel_profile import ITERATIONS, request_file, trace_file

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for worker in workers:
            trace_file(worker.path).unlink(missing_ok=True)
            request_file(worker.path).touch()
    except OSError as error:
        raise BadInput(f"--profile {folder}: {error.strerror}") from None
    missing, deadline = list(workers), time.monotonic() + PROFILE_S
    while missing and time.monotonic() < deadline:
        time.sleep(0.1)
        missing = [worker for worker in missing if not trace_file(worker.path).exists() and worker.path.exists()]
    problems = 0
    for worker in workers:
        rank, trace = worker.board.rank, trace_file(worker.path)
        request_file(worker.path).unlink(missing_ok=True)
        text = trace.read_text() if trace.exists() else f"{ITERATIONS} iterations have not ended within {PROFILE_S:g} s"
        trace.unlink(missing_ok=True)
        if text.lstrip().startswith("{"):
            (folder / f"rank-{rank}.json").write_text(text)
            print(f"{folder / f'rank-{rank}.json'}: open it in ui.perfetto.dev", file=sys.stderr)
        else:
            print(f"rank {rank}: no trace: {text[:300]}", file=sys.stderr)
            problems += 1
    return 1 if problems == len(workers) else 0


def _clear(readings: int) -> str:
    if sys.stdout.isatty():
        return "\x1b[2J\x1b[H"
    return "\n" if readings else ""
