"""Reads the trainings and the faults of the run, compares them, writes the page."""

import os
import shutil
import sys
import time
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.runtime.exit_codes import ExitCode
from everstep.steps.entry import Result, StepError
from everstep.steps.verdict.compare import FinalState, Row, Training, refused_row, row
from everstep.steps.verdict.config import Config

if TYPE_CHECKING:
    from everstep.runtime.checkpoint.stored.manifest import Commit
    from everstep.runtime.report.read import Run
    from everstep.runtime.store import Store

PAGE = "drill.html"


def run(config: Config) -> Result:
    """Write the page. Raises StepError with exit code 1 if a line does not hold, or no fault fired, after that."""
    from everstep.runtime.platform import POD_VARIABLE
    from everstep.runtime.report import WorkflowFacts, read_run
    from everstep.runtime.store import open_store

    store = open_store(config.store)
    run_data = read_run(store, config.run, facts=WorkflowFacts(uid=config.uid))
    rows, references, stopped = [], dict[str, Training](), ""
    for experiment in config.parse_experiments():
        fault_fired = run_data.steps.get(f"chaos-{experiment.name}", {}).get("facts")
        if fault_fired and "refused" in fault_fired:
            rows.append(refused_row(experiment, fault_fired["refused"]))
            continue
        if experiment.reference not in references:
            references[experiment.reference] = _training(store, run_data, experiment.reference)
        mine, reference = _training(store, run_data, experiment.name), references[experiment.reference]
        useless = _why_useless(experiment.reference, reference)
        stopped = stopped or useless
        why = f"not tried: {useless}" if useless else "it did not fire; see the log of its step"
        rows.append(row(experiment, fault_fired, why, mine, reference, config.tolerance))
        print(in_words(rows[-1]), file=sys.stderr, flush=True)
    page = write_page(config, rows, references)
    see = "see this step's artifact drill" if os.environ.get(POD_VARIABLE) else f"see {page}"
    good = sum(outcome.good for outcome in rows)
    bad = [outcome.name for outcome in rows if not outcome.good and not outcome.refused]
    refused_names = [outcome.name for outcome in rows if outcome.refused]
    line = f"{good} of {len(rows)} experiments hold" + (
        f"; not possible here: {', '.join(refused_names)}" if refused_names else ""
    )
    if stopped and not any(outcome.fired for outcome in rows):
        raise StepError(f"the drill stopped: {stopped}; {see}", ExitCode.FAILED)
    if bad:
        raise StepError(f"{line}; not: {', '.join(bad)}; {see}", ExitCode.FAILED)
    if not good:
        raise StepError(f"{line}: no fault met a training, so nothing is shown; {see}", ExitCode.FAILED)
    facts = {"experiments": len(rows), "hold": good, "refused": refused_names}
    return Result(f"{line}; {see}", {"verdict": line}, facts, {PAGE: page})


def _why_useless(name: str, reference: Training) -> str:
    """Why nothing can be compared with that undisturbed training; empty: it can."""
    if reference.result != "succeeded":
        return f"the undisturbed training {reference.result or 'did not end'}: train-{name}"
    if not reference.state.shards:
        what = f"the undisturbed training left no readable checkpoint to compare with: train-{name}"
        return f"{what}; a script keeps its state with everstep.Checkpointer"
    return ""


def in_words(outcome: Row) -> str:
    """One line of the log."""
    if outcome.refused or not outcome.fired:
        return f"{outcome.name}: {outcome.fault}"
    cells = (
        f"state {outcome.state.text}",
        f"samples {outcome.samples.text}",
        f"again {outcome.lost.text}",
        f"s {outcome.seconds.text}",
    )
    return f"{outcome.name}: {'holds' if outcome.good else 'DOES NOT HOLD'}: {'; '.join(cells)}; {outcome.fault}"


def _training(store: "Store", run_data: "Run", name: str) -> Training:
    """The training of that experiment; an empty one if nothing is known of it."""
    history = run_data.jobs.get(f"train-{name}")
    if history is None:
        return Training((), FinalState(), "")
    start_s = history.points[0].time - history.begin if history.points and history.begin else 0.0
    return Training(history.points, final_state(store, f"{run_data.uid}-train-{name}"), history.result, start_s)


def final_state(store: "Store", job: str) -> FinalState:
    """Of the newest checkpoint, all bytes of which are checked, one after the other. Its tensors are only read if the
    bytes differ from the reference's: a state may be larger than this step's memory."""
    from everstep.runtime.checkpoint.stored.verify import find_problems, list_checkpoints

    committed_entries = [entry for entry in list_checkpoints(store, f"jobs/{job}/") if entry.commit]
    if not committed_entries:
        return FinalState()
    newest = max(committed_entries, key=lambda entry: (entry.round, entry.iteration))
    assert newest.commit, "only these"
    for problem in find_problems(store, newest.folder, newest.commit):
        print(f"{newest.folder}: {problem}", file=sys.stderr)
        return FinalState()
    shards = frozenset((shard.shard, shard.digest) for shard in newest.commit.objects)
    read = cache(partial(_read_tensors, store, newest.folder, newest.commit))
    return FinalState(newest.commit.iteration, shards, newest.size, read)


def _read_tensors(store: "Store", folder: str, commit: "Commit") -> Mapping[str, Any]:
    """By name; empty if each rank has a state of its own."""
    from everstep.runtime.checkpoint.errors import RestoreError
    from everstep.runtime.checkpoint.state.flatten import flatten
    from everstep.runtime.checkpoint.stored.read_committed import read_committed

    try:
        return flatten(read_committed(store, folder, commit)[0]).tensors
    except RestoreError as error:
        print(f"{folder}: {error}", file=sys.stderr)
        return {}


def write_page(config: Config, rows: list[Row], references: dict[str, Training]) -> Path:
    """The page among the outputs, and a copy in the run's folder if there is one."""
    from everstep.runtime.display.pages import environment

    path = Path(config.outputs) / PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    template = environment(Path(__file__).parent, {}).get_template("drill.html")
    lengths = sorted({reference.state.iteration for reference in references.values()})
    iterations = " or ".join(map(str, lengths)) or "no"
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    path.write_text(template.render(run=config.run, rows=rows, iterations=iterations, when=when), encoding="utf-8")
    place = os.environ.get("EVERSTEP_RUN_DIR")
    if not place or not os.access(place, os.W_OK):
        return path
    fresh = Path(place, f".{PAGE}")
    shutil.copyfile(path, fresh)
    return fresh.replace(Path(place, PAGE))
