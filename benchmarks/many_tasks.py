"""100,000 tasks in one workflow, and 1,000 runs in one folder: `python -m benchmarks.many_tasks`.

The engine decides on every task as in a real run, and the status is written; no process is started, as that costs the
same for each task (`benchmarks/executor.py`). The runs are those of a workflow of ten steps, listed by the command, in
a process of its own, and by the page of `everstep ui`, which asks again and again.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.acceptance import Line, judge
from benchmarks.executor import FLAT, chain, engine_s, fan
from benchmarks.memory import peak_bytes
from everstep.cli.ui.sources import LocalRuns
from everstep.runtime.workflow.run import status

LIST_S = 1.0
FEW = 1000
"""Tasks of the workflow whose time per task is the measure."""
STEPS_OF_A_RUN = 10


def tasks(count: int) -> Iterator[Line]:
    """`count` tasks of one workflow, side by side and one after the other."""
    shapes: tuple[tuple[str, Callable[[int], dict[str, Any]]], ...] = (
        ("items of one task", fan),
        ("tasks one after the other", chain),
    )
    for name, shape in shapes:
        few, _ = min((engine_s(shape(FEW)) for _ in range(3)), key=lambda pair: pair[0])
        each, engine = engine_s(shape(count))
        summary_text = (
            f"{each * len(engine.state.nodes):.1f} s, {each * 1e6:.0f} us each, x {each / few:.2f} beside {FEW}"
        )
        yield Line(f"{count} {name}", f"<= {FLAT} x each", summary_text, each <= FLAT * few)
        with tempfile.TemporaryDirectory() as folder:
            writer = status.StatusWriter(engine, Path(folder))
            for _ in range(2):  # The second write finds the nodes' text cached, as all but the first do.
                began = time.perf_counter()
                writer.write()
                took = time.perf_counter() - began
        yield Line(f"{count} {name}: a write of the status", "told", f"{took:.2f} s, each {writer.every_s:.0f} s", True)
    yield Line("peak memory", "told", f"{peak_bytes() / 2**20:.0f} MiB", True)


def runs(count: int) -> Iterator[Line]:
    """A listing of `count` runs in one folder."""
    _, engine = engine_s(chain(STEPS_OF_A_RUN))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        status.StatusWriter(engine, folder).write()
        text = (folder / "workflow.json").read_text()
        for number in range(count):
            name = f"run-{number:04d}"
            (folder / name).mkdir()
            (folder / name / "workflow.json").write_text(text.replace("bench", name))
        began = time.perf_counter()
        command = [sys.executable, "-m", "everstep", "workflow", "list", "--runs", place]
        completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        took = time.perf_counter() - began
        printed_runs = completed.stdout.count("Succeeded")
        holds = took <= LIST_S and printed_runs == count
        yield Line(
            f"`everstep workflow list` of {count} runs", f"<= {LIST_S:g} s", f"{took:.2f} s: {printed_runs}", holds
        )
        source = LocalRuns(folder)
        for when in ("the first look", "each later look"):
            began = time.perf_counter()
            listed_runs = len(source.entries())
            took = time.perf_counter() - began
            holds = took <= LIST_S and listed_runs == count
            yield Line(f"the page's list of {count} runs, {when}", f"<= {LIST_S:g} s", f"{took:.2f} s", holds)


def main() -> None:
    """Measure and print; exit code 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=1000)
    options = parser.parse_args()
    judge([*tasks(options.tasks), *runs(options.runs)])


if __name__ == "__main__":
    main()
