"""Ctrl-C, SIGTERM, stop, terminate, kill: what is lost, and what is said of it."""

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.acceptance import Line
from benchmarks.first_hour.commands import EVERSTEP, PIPELINE, Answer, Going, ask, going
from tests.harness import wait_until

ITERATIONS, REACHED = 60, 12
WAYS: dict[str, Callable[[Path, Going, str], object]] = {
    "Ctrl-C": lambda folder, run, name: run.interrupt(),
    "SIGTERM": lambda folder, run, name: run.send(signal.SIGTERM),
    "everstep workflow stop": lambda folder, run, name: ask(folder, [EVERSTEP, "workflow", "stop", name]),
    "everstep workflow terminate": lambda folder, run, name: ask(folder, [EVERSTEP, "workflow", "terminate", name]),
}


def train(folder: Path, name: str) -> list[str]:
    """The pipeline on its usual text, which is tokenized once, with short samples."""
    flags = {"nodes": 1, "iterations": ITERATIONS, "sequence-length": 32, "name": name}
    return [*PIPELINE, *(f"--{flag}={value}" for flag, value in flags.items())]


def status(folder: Path, name: str) -> dict[str, Any]:
    """What `everstep status -o json` says."""
    return json.loads(ask(folder, [EVERSTEP, "status", name, "-o", "json"]).text)


def iteration_reached(folder: Path, name: str) -> int:
    """The newest iteration that the step's log tells; 0: none yet."""
    logs = (folder / "runs" / name / "logs").glob("train*.log")
    numbers = re.findall(r"iteration (\d+)/", "".join(log.read_text() for log in logs))
    return int(numbers[-1]) if numbers else 0


def stop_run(folder: Path, way: str) -> Iterator[Line]:
    """Stop a training in one of the ways, and start it again."""
    name = "stopped-" + re.sub("[^a-z]+", "-", way.lower())
    with going(folder, train(folder, name)) as run:
        wait_until(lambda: iteration_reached(folder, name) >= REACHED, "the training")
        WAYS[way](folder, run, name)
        outcome = run.end()
    at, before = iteration_reached(folder, name), status(folder, name)
    stored_iteration = (before["checkpoint"] or {}).get("iteration", 0)
    yield Line(
        f"{way}: the newest state goes to the store within the grace",
        "exit 130, lost <= 1 iteration, < 20 s",
        f"exit {outcome.code}, reached {at}, stored {stored_iteration}, {outcome.seconds:.1f} s",
        outcome.code == 130 and at - stored_iteration <= 1 and outcome.seconds < 20,
    )
    now = before["conditions"][-1]["type"]
    yield Line(f"{way}: the status is not stale", "Failed: told to stop", f"{now}: {before['reason']}", now == "Failed")
    again = ask(folder, train(folder, name))
    begun = (status(folder, name)["round"]["restored"] or {}).get("iteration", 0)
    yield Line(
        f"{way}: the same command goes on there",
        f"from {stored_iteration}, exit 0",
        f"from {begun}, exit {again.code}",
        again.code == 0 and begun == stored_iteration > 0,
    )
    page = re.sub("<[^>]+>", " ", (folder / "runs" / name / "report.html").read_text())
    attempt = re.search(r"stopped at iteration \d+ [^;]*; started again[^.]*from iteration (\d+)[^.]*", page)
    yield Line(
        f"{way}: the report tells the attempts and what was lost",
        f"started again from iteration {stored_iteration}",
        attempt[0] if attempt else "nothing",
        bool(attempt) and int(attempt[1]) == stored_iteration,
    )


def twice(folder: Path) -> Iterator[Line]:
    """Ctrl-C, and again at once."""
    with going(folder, train(folder, "twice")) as run:
        wait_until(lambda: iteration_reached(folder, "twice") >= REACHED, "the training")
        run.interrupt()
        run.interrupt()
        outcome = run.end()
    last_line = next(
        (line.strip() for line in outcome.text.splitlines() if re.search("lost|is in the store", line)), "nothing"
    )
    yield Line(
        "a second Ctrl-C ends at once and says what is lost",
        "exit 130, < 5 s, a line about it",
        f"exit {outcome.code}, {outcome.seconds:.1f} s: {last_line}",
        outcome.code == 130 and outcome.seconds < 5 and last_line != "nothing",
    )


SCRIPT = """
import os, signal, everstep, torch
job = everstep.init()
model = torch.nn.Linear(4, 4)
state = {"model": model}
checkpointer = everstep.Checkpointer(state)
begun = checkpointer.load(state)
print("begun", begun, flush=True)
for iteration in range(begun + 1, 41):
    everstep.phase("forward")
    checkpointer.save(iteration, state)
    everstep.report(loss=float("nan") if iteration <= int(os.environ.get("NAN", 0)) else 1.0)
    if iteration == int(os.environ.get("DIE", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def own_script(folder: Path, name: str = "own.py") -> str:
    """A script with a loop of its own, without `finish`."""
    path = folder / name
    path.write_text(SCRIPT)
    return str(path)


def alone(folder: Path) -> Iterator[Line]:
    """`python script.py`, killed, and started again."""
    environment = {"EVERSTEP_STORE": str(folder / "alone")}
    command = [sys.executable, own_script(folder)]
    first, second = ask(folder, command, {**environment, "DIE": "17"}), ask(folder, command, environment)
    yield Line(
        "python script.py, killed and started again: goes on from its last save",
        "begun 17, exit 0",
        f"exit {first.code}, then {_first_line(second)}, exit {second.code}",
        first.code == -9 and _first_line(second) == "begun 17" and second.code == 0,
    )
    third = ask(folder, command, environment)
    yield Line(
        "the same without finish: its last state is in the store",
        "begun 40",
        _first_line(third),
        _first_line(third) == "begun 40",
    )
    last_line = next((line for line in first.text.splitlines() if "EVERSTEP_PERSIST_INTERVAL" in line), "nothing")
    ask(folder, command, {"EVERSTEP_STORE": str(folder / "often"), "EVERSTEP_PERSIST_INTERVAL": "5", "DIE": "17"})
    listed = ask(folder, [EVERSTEP, "checkpoint", "ls", str(folder / "often")]).text
    yield Line(
        "its interval is told and can be set",
        "told; 5 gives a checkpoint of 10",
        f"{last_line}; {listed.splitlines()[-1]}",
        last_line != "nothing" and "000000010" in listed,
    )


def _first_line(answer: Answer) -> str:
    return next((line for line in answer.text.splitlines() if line.startswith("begun")), answer.last)


def by_hand(folder: Path, run: str, **flags: object) -> list[str]:
    """The train step by hand, with the script of `own_script`."""
    settings = {
        "script": own_script(folder),
        "nodes": 1,
        "iterations": 40,
        "run": run,
        "outputs": f"out-{run}",
        **flags,
    }
    return [sys.executable, "-m", "everstep.steps.train", *(f"--{name}={value}" for name, value in settings.items())]


def own_loop(folder: Path) -> Iterator[Line]:
    """A loop without `everstep.batches`, without `finish`, under the elastic runtime."""
    answer = ask(folder, by_hand(folder, "loop"), {"NAN": "10"})
    log = "".join(path.read_text(errors="replace") for path in (folder / "runs/loop").rglob("*.log"))
    iterations_text = (folder / "out-loop/iterations").read_text() if answer.code == 0 else ""
    yield Line(
        "a loop of one's own, without finish: nothing is lost",
        "exit 0, 40",
        f"exit {answer.code}, {iterations_text}",
        iterations_text == "40",
    )
    warnings = re.findall(r"the loss of iteration \d+ is nan[^\n]*", log + answer.text)
    yield Line("ten NaNs do not pass in silence", "said", "; ".join(warnings) or "nothing", bool(warnings))
    fault = ask(folder, by_hand(folder, "fault", **{"max-restarts": 0}), {"DIE": "9"})
    match = re.search(
        r"rank 0[^\n]*at iteration (\d+)",
        fault.text + "".join(path.read_text(errors="replace") for path in (folder / "runs/fault").rglob("*.log")),
    )
    at = match[1] if match else "none"
    yield Line("messages about such a loop know the iteration", "iteration 9", f"iteration {at}", at == "9")
    where = folder / "runs"
    yield Line(
        "--run of a step by hand is obeyed",
        "runs/loop, runs/fault",
        ", ".join(sorted(p.name for p in where.iterdir())),
        (where / "loop").is_dir() and (where / "fault").is_dir() and not (where / "by-hand").exists(),
    )


def measure(folder: Path) -> Iterator[Line]:
    """All lines of this part."""
    for way in WAYS:
        yield from stop_run(folder, way)
    yield from twice(folder)
    yield from alone(folder)
    yield from own_loop(folder)
