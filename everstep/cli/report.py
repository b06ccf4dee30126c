"""`everstep report RUN`: what a run did and where its seconds went, also while it runs and when its master is dead."""

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from everstep.cli.find_job import IN_STORE, store_of
from everstep.cli.run_views import read_workflow, run_folder
from everstep.errors import BadInput
from everstep.flags import Flag, add_action

if TYPE_CHECKING:
    from everstep.runtime.report import Run


@dataclass(frozen=True)
class Report:
    """Show what a run did: steps, ledger, faults with their cost. From its folder, journal and telemetry alone."""

    run: Annotated[str, Flag(metavar="RUN", is_positional=True)]
    """A run of this machine, or what a store has of one: STORE/runs/NAME or STORE/jobs/JOB, also s3://..."""
    output: Annotated[Literal["md", "json", "html", "otlp"], Flag("-o")] = "md"
    """Markdown, data, the page, or an OpenTelemetry trace (OTLP/JSON) below the parent that TRACEPARENT names."""
    runs: Path = Path("runs")
    """Directory of the run folders."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Report, run)
    parser.epilog = (
        "examples: everstep report llama-finetune-x7k2; everstep report RUN -o html > report.html; "
        "everstep report s3://bucket/prefix/runs/llama-finetune-x7k2"
    )


def _read(flags: Report) -> "Run":
    """Raises BadInput, StoreError."""
    from everstep.runtime.report import read_job, read_run
    from everstep.runtime.store import open_store

    if store_match := IN_STORE.fullmatch(flags.run):
        uri, kind, name = store_match.groups()
        store = open_store(uri, read_only=True)
        history = read_run(store, name) if kind == "runs" else read_job(store, name)
        if not history.jobs and not history.steps:
            raise BadInput(f"{flags.run}: the store has no such run or job; `everstep report STORE/runs/NAME`")
        return history
    folder = run_folder(flags.runs, flags.run)
    return read_run(open_store(store_of(read_workflow(folder)), read_only=True), flags.run, folder=folder)


def run(flags: Report) -> int:
    """Print the report; returns the exit code. Raises BadInput."""
    from everstep.runtime.report import render
    from everstep.runtime.report.summary import markdown, summary
    from everstep.runtime.report.traces import traces
    from everstep.runtime.store import StoreError

    try:
        history, now = _read(flags), time.time()
    except StoreError as error:
        raise BadInput(f"{flags.run}: {error}") from None
    if flags.output == "html":
        sys.stdout.write(render(history, now))
    elif flags.output == "otlp":
        print(json.dumps(traces(history, now, os.environ.get("TRACEPARENT", ""))))
    elif flags.output == "json":
        print(json.dumps(summary(history, now), indent=1))
    else:
        sys.stdout.write(markdown(summary(history, now)))
    return 0
