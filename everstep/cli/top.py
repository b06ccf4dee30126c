"""`everstep top [RUN]`: what the ranks on this machine do, again and again. `top_table` has what is shown.

On a cluster the same command runs in every pod of the job, all at once, for each reading.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from everstep.cli.ask_pods import ask_pods, running_pods
from everstep.cli.find_job import ClusterJob, find_on_cluster, store_of
from everstep.cli.stacks import workers_of
from everstep.cli.status import CLEAR
from everstep.errors import BadInput
from everstep.flags import Flag, add_action

PROFILE_S = 120.0
"""So long the ranks have for the iterations that --profile asks for."""
MOST_SILENT_S = 600.0
"""So long a job may have no worker here between two rounds; by default it may lack its minimum of nodes so long."""
_POD_S = 120.0
"""How long one pod may take to tell, beside the window."""

if TYPE_CHECKING:
    from everstep.cli.top_table import Window
    from everstep.runtime.watch.find_workers import LocalWorker


@dataclass(frozen=True)
class Top:
    """Show what each rank on this machine, or of a run on a cluster, does, until Ctrl-C or the job's end: its pace,
    which one the others wait for, stalls by saves, CPU, memory, device; tokens per second, the newest event."""

    job: Annotated[str, Flag(metavar="RUN[/STEP]", is_positional=True)] = ""
    """A run (and its train step if it has several), or a job of `everstep launch`. Default: the only one here."""
    every: float = 3.0
    """Seconds between two readings; slow ranks are judged over this window."""
    times: int = 0
    """Number of readings; 0: until the job ends."""
    timeline: Path | None = None
    """Write each rank's newest iterations there (-: to stdout) as a Chrome trace (for ui.perfetto.dev), and exit."""
    profile: Path | None = None
    """Have torch's profiler record each rank's next three iterations (operators, and a GPU's kernels), write a Chrome
    trace of each there, and exit."""
    output: Annotated[Literal["text", "json"], Flag("-o")] = "text"
    """For people, or programs: a line for each reading."""
    namespace: Annotated[str, Flag("-n")] = ""
    """Namespace of the run, if it is on a cluster (kube context; needs the right to exec in pods)."""
    runs: Path = Path("runs")
    """Directory of the run folders."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Top, run)
    parser.epilog = (
        "examples: everstep top; everstep top llama-finetune-x7k2 --every 10 --times 1; everstep top RUN -n ml"
    )


def run(flags: Top) -> int:
    """Print a table for each look; returns the exit code. Raises BadInput."""
    if not 2 <= flags.every <= 3600 or flags.times < 0:
        raise BadInput(f"--every {flags.every:g} --times {flags.times}: give 2 to 3600 seconds, and a number from 0 on")
    if flags.namespace:
        if flags.timeline is not None:
            return _write_timeline_of_pods(flags, flags.timeline)
        windows = _windows_on_cluster(flags)
    else:
        workers = workers_of(flags.runs, flags.job)
        if flags.timeline is not None:
            return _write_timeline(workers, flags.timeline)
        if flags.profile is not None:
            return _write_profiles(workers, flags.profile)
        windows = _windows_here(flags, workers)
    try:
        for reading, (store, shown) in enumerate(windows, 1):
            print(_text(flags, store, shown, reading), flush=True)
            if reading == flags.times:
                break
    except KeyboardInterrupt:
        pass
    return 0


def _text(flags: Top, store: str, shown: "Window", reading: int) -> str:
    import msgspec

    from everstep.cli.top_table import last_event, table

    if flags.output == "json":
        return msgspec.json.encode(shown).decode()
    head = CLEAR if sys.stdout.isatty() else "\n" * (reading > 1)
    return head + "\n".join([table(shown, "" if flags.namespace else " here"), last_event(store, shown.job)])


def _windows_here(flags: Top, workers: "list[LocalWorker]") -> "Iterator[tuple[str, Window]]":
    """(URI of the job's store, what its ranks on this machine did), window after window, until the job has ended or
    has had none here for MOST_SILENT_S."""
    from everstep.cli.top_table import Reading, devices_of, has_ended, window

    devices, board, silent_s = devices_of(), workers[0].board, 0.0
    before: Reading | None = None
    while True:
        try:  # The first one again: since they were found, the imports took a while.
            after = Reading.take(workers_of(flags.runs, flags.job or board.job), devices)
        except BadInput:  # Between two rounds the job has no worker. Who asks once, as in a pod, asks for those of now.
            if flags.times == 1 or silent_s >= MOST_SILENT_S or has_ended(board.store, board.job):
                return
            before, silent_s = None, silent_s + flags.every
        else:
            if before is not None:
                yield board.store, window(before, after)
            before, silent_s = after, 0.0
        time.sleep(flags.every)


def _windows_on_cluster(flags: Top) -> "Iterator[tuple[str, Window]]":
    """The same of all pods of the run's job, until none runs. Raises BadInput."""
    from everstep.cli.top_table import join_windows
    from everstep.runtime.platform.kubernetes.pods import AGENT_CONTAINER

    if flags.profile is not None:
        raise BadInput(
            f"--profile {flags.profile} is of the ranks on this machine; in a pod of the job: "
            f"kubectl exec POD -c {AGENT_CONTAINER} -n {flags.namespace} -- python -m everstep top --profile DIR"
        )
    has_told = False
    while True:
        job, pods = _pods_of(flags)
        if has_told and not pods:
            return
        words = ["top", job.job, "-o", "json", "--times", "1", "--every", f"{flags.every:g}"]
        shown = join_windows(ask_pods(job, pods, words, flags.every + _POD_S))
        if shown is not None:
            yield store_of(job.workflow), shown
        elif not has_told:
            raise BadInput(f"{flags.job}: no pod of it has said what its ranks do" + ("" if pods else ": none runs"))
        else:  # Between two rounds they have no worker.
            time.sleep(flags.every)
        has_told = True


def _pods_of(flags: Top) -> tuple[ClusterJob, list[dict[str, Any]]]:
    """The run's job on the cluster, and its pods that run. Raises BadInput."""
    from everstep.runtime.submission.route import ApiError

    if not flags.job:
        raise BadInput(f"--namespace {flags.namespace}: name the run")
    try:
        job = find_on_cluster(flags.namespace, flags.job)
        return job, running_pods(job)
    except ApiError as error:
        raise BadInput(f"{flags.job}: {error}") from None


def _write_timeline(workers: "list[LocalWorker]", path: Path) -> int:
    from everstep.runtime.watch.timeline import chrome_trace

    return _write(chrome_trace([(worker.node, worker.board) for worker in workers]), path)


def _write_timeline_of_pods(flags: Top, path: Path) -> int:
    """One file of all pods. Raises BadInput."""
    from everstep.runtime.watch.timeline import join_traces

    job, pods = _pods_of(flags)
    traces = [trace for trace in ask_pods(job, pods, ["top", job.job, "--timeline", "-"], _POD_S) if trace.strip()]
    if not traces:
        raise BadInput(f"{flags.job}: no pod of it has sent its iterations" + ("" if pods else ": none runs"))
    try:
        return _write(join_traces(traces), path)
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{flags.job}: a pod's answer is no trace; does its image have another Everstep?") from None


def _write(trace: str, path: Path) -> int:
    if str(path) == "-":
        print(trace)
        return 0
    try:
        path.write_text(trace)
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
