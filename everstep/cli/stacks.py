"""`everstep stacks RUN[/STEP]`: what every rank does at this moment, as one picture.

The workers of this machine are found by their boards, so neither master nor agent is asked. On a cluster the same
command runs in every pod of the job, all at once. Of other machines' files `--path` makes one picture.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from everstep.cli.ask_pods import ask_pods, running_pods
from everstep.cli.find_job import find_on_cluster, locate
from everstep.errors import BadInput
from everstep.flags import Flag, add_action

if TYPE_CHECKING:
    from everstep.runtime.watch.find_workers import LocalWorker
    from everstep.runtime.watch.looks import Look

_POD_S = 120.0
"""How long one pod may take to tell."""
EXAMPLES = (
    "examples: everstep stacks llama-finetune-x7k2; everstep stacks RUN -n ml; "
    "everstep stacks RUN --native --to pictures; "
    "everstep stacks --path runs/store/jobs/JOB/logs"
)


@dataclass(frozen=True)
class Stacks:
    """Show what all ranks of a job do at this moment: which is out of step, and their stacks, merged."""

    job: Annotated[str, Flag(metavar="RUN[/STEP]", is_positional=True)] = ""
    """A run (and its train step if it has several), or a job of `everstep launch`. Default: the only one here."""
    native: bool = False
    """Also native frames (C, C++)."""
    path: Path | None = None
    """Read dumped files, or a folder of them, instead of a running job."""
    to: Path | None = None
    """Write stacks.txt, stacks.json, speedscope.json, py_stack.svg and, with --native, native_stack.svg there."""
    output: Annotated[Literal["text", "json", "speedscope"], Flag("-o")] = "text"
    """text: merged, for people. json: the stacks themselves, which --path reads. speedscope: for that viewer."""
    namespace: Annotated[str, Flag("-n")] = ""
    """Namespace of the run, if it is on a cluster (kube context; needs the right to exec in pods)."""
    runs: Path = Path("runs")
    """Directory of the run folders."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Stacks, run)
    parser.epilog = EXAMPLES


def run(flags: Stacks) -> int:
    """Print or write the stacks; returns the exit code. Raises BadInput."""
    from everstep.runtime.watch.looks import render, write_all

    if flags.namespace and flags.path is not None:
        raise BadInput(f"--path {flags.path} is read on this machine; leave --namespace out")
    if flags.job and flags.path is not None:
        raise BadInput(f"--path {flags.path} already names the job; leave {flags.job} out")
    looks = _looks(flags)
    if flags.to is not None:
        try:
            paths = write_all(looks, flags.to, flags.job or str(flags.path or "job"), flags.native)
        except OSError as error:
            raise BadInput(f"--to {flags.to}: {error.strerror}") from None
        print(*paths, sep="\n", file=sys.stderr)
    print(render(looks, flags.output, flags.job or str(flags.path or "job")))
    return 0


def _looks(flags: Stacks) -> "Sequence[Look]":
    if flags.path is not None:
        return read_dumps(flags.path)
    if flags.namespace:
        return look_in_pods(flags.namespace, flags.job, flags.native)
    from everstep.runtime.watch.looks import look

    return asyncio.run(look(workers_of(flags.runs, flags.job), flags.native))


def workers_of(runs: Path, name: str) -> "list[LocalWorker]":
    """The live workers on this machine of that run's job or launched job; without a name, of the only job there is.

    Raises BadInput.
    """
    from everstep.runtime.watch.find_workers import local_workers

    folder = runs / name.partition("/")[0]
    job = locate(folder, name)[1] if name and folder.is_dir() else name
    workers = local_workers()
    jobs = sorted({worker.board.job for worker in workers})
    if not jobs:
        raise BadInput(f"{name or 'stacks'}: no worker of any job runs on this machine")
    if not job and len(jobs) == 1:
        job = jobs[0]
    if job not in jobs:
        raise BadInput(f"{name or 'which job?'}: these have workers on this machine: {', '.join(jobs)}")
    return [worker for worker in workers if worker.board.job == job]


def look_in_pods(namespace: str, name: str, native: bool) -> "list[Look]":
    """Look at all workers of the run's job on the cluster, all pods at the same time. Raises BadInput."""
    from everstep.runtime.submission.route import ApiError
    from everstep.runtime.watch.looks import Look, parse_looks

    if not name:
        raise BadInput(f"--namespace {namespace}: name the run")
    try:
        job = find_on_cluster(namespace, name)
        pods = running_pods(job)
    except ApiError as error:
        raise BadInput(f"{name}: {error}") from None
    words = ["stacks", job.job, "-o", "json", *(["--native"] if native else [])]
    looks: list[Look] = [look for answer in ask_pods(job, pods, words, _POD_S) for look in parse_looks(answer)]
    if not looks:
        raise BadInput(f"{name}: no pod of it has sent its stacks" + ("" if pods else ": none runs"))
    return sorted(looks, key=lambda look: look.stacks.rank)


def read_dumps(path: Path) -> "list[Look]":
    """The stacks in a file, or in all files of a folder that have some. Raises BadInput."""
    from everstep.runtime.watch.dumps import NotStacksError, parse_dump
    from everstep.runtime.watch.looks import Look, parse_looks

    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    looks, last = list[Look](), f"{path}: no files"
    for file in files:
        try:
            text = file.read_text(errors="replace")
            looks += parse_looks(text) or [Look(stacks) for stacks in parse_dump(file.name, text)]
        except OSError as error:
            raise BadInput(f"{file}: {error.strerror}") from None
        except NotStacksError as error:
            last = f"{file.parent}/{error}"
    if not looks:
        raise BadInput(last)
    # Of several dumps of a rank, that of the last file.
    return list({look.stacks.rank: look for look in looks}.values())
