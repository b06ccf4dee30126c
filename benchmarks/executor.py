"""The embedded executor's own cost: `python -m benchmarks.executor`. No step does anything: all that is seen is ours.

Overhead of a step = its time in the executor, less what a bare fork and exec of the same command takes in the same run.
Engine time is the pure engine's, without processes and files: it must not grow with the number of nodes.
"""

import resource
import statistics
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from runtime.workflow import RunOptions, parse, run, status
from runtime.workflow.engine import Engine
from runtime.workflow.events import PodEnded, PodStarted, RunCreated
from runtime.workflow.library import Library
from runtime.workflow.lint import findings
from runtime.workflow.reading import read_text

STEPS = 200
SIZES = (1000, 2000, 5000)
COMMAND = ["true"]


class Line(NamedTuple):
    """One line of the table."""

    what: str
    measured: str
    budget: str = ""


def workflow(templates: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    """A manifest whose entrypoint is `main`; `noop` does nothing."""
    noop = {"name": "noop", "container": {"image": "none", "command": COMMAND}}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "bench"},
        "spec": {"entrypoint": "main", "templates": [*templates, noop], **spec},
    }


def chain(count: int) -> dict[str, Any]:
    """A DAG of tasks one after the other."""
    tasks = [{"name": f"t{i}", "template": "noop", "depends": f"t{i - 1}" if i else ""} for i in range(count)]
    return workflow([{"name": "main", "dag": {"tasks": tasks}}])


def fan(count: int, at_once: int | None = None) -> dict[str, Any]:
    """A DAG of one task with that many items."""
    task = {"name": "t", "template": "noop", "withSequence": {"count": str(count)}}
    more = {"parallelism": at_once} if at_once else {}
    return workflow([{"name": "main", "dag": {"tasks": [task]}}], **more)


def bare_s() -> float:
    """Median seconds of a fork, exec and wait of the command."""
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        subprocess.run(COMMAND, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def step_s(manifest: dict[str, Any]) -> tuple[float, float]:
    """(median seconds between two ends, seconds per step overall) of a run."""
    with tempfile.TemporaryDirectory() as runs:
        began = time.perf_counter()
        ended: list[float] = []

        def seen(engine: Engine, folder: Path) -> None:
            if engine.finished:
                ended[:] = sorted(
                    node.finished for node in engine.nodes.values() if node.template == "noop" and node.pid
                )

        run(manifest, RunOptions(name="bench", runs=Path(runs), on_change=seen))
        whole = time.perf_counter() - began
    return statistics.median(b - a for a, b in pairwise(ended)), whole / STEPS


def engine_s(manifest: dict[str, Any]) -> tuple[float, Engine]:
    """(CPU seconds of the engine for each node, the engine): every pod starts and ends well, none really runs."""
    parsed = parse(manifest)
    began = time.process_time()
    engine = Engine(parsed, RunCreated(0.0, "bench", "uid"))
    now = 0.0
    while not engine.finished:
        for node in engine.pending():
            now += 1
            engine.handle(PodStarted(now, node.name, 7, 7))
        for node in engine.running():
            now += 1
            engine.handle(PodEnded(now, node.name, 0))
    return (time.process_time() - began) / len(engine.nodes), engine


def lint_s() -> float:
    """Seconds to read and lint a file of 50 templates, one task each; best of 5."""
    manifest = workflow([{"name": "main", "dag": {"tasks": [
        {"name": f"t{i}", "template": f"p{i}",
         "arguments": {"parameters": [{"name": "x", "value": "{{workflow.name}}"}]}}
        for i in range(50)
    ]}}, *(
        {"name": f"p{i}", "inputs": {"parameters": [{"name": "x"}]},
         "container": {"image": "none", "command": ["echo", "{{inputs.parameters.x}}"]}}
        for i in range(50)
    )])  # fmt: skip
    text = yaml.safe_dump(manifest)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        findings(read_text(text)[0], Library())
        times.append(time.perf_counter() - began)
    return min(times)


def lines() -> list[Line]:
    """Everything that is measured."""
    bare = bare_s()
    one, _ = step_s(chain(STEPS))
    _, eight = step_s(fan(STEPS, at_once=8))
    found = [
        Line(f"fork and exec of `{COMMAND[0]}`, bare", f"{bare * 1e3:.1f} ms"),
        Line(f"overhead of a step, {STEPS} one after the other (median)", f"{(one - bare) * 1e3:.1f} ms", "<= 50 ms"),
        Line(f"overhead of a step, {STEPS} with 8 at a time", f"{(eight - bare) * 1e3:.1f} ms", "<= 50 ms"),
    ]
    for name, shape in (("one after the other", chain), ("items of one task", fan)):
        per_node = {}
        for size in SIZES:
            per_node[size], engine = min((engine_s(shape(size)) for _ in range(3)), key=lambda pair: pair[0])
            found.append(Line(f"engine, {size} nodes, {name}", f"{per_node[size] * 1e6:.0f} us a node"))
        ratio = per_node[SIZES[-1]] / per_node[SIZES[0]]
        found.append(Line(f"the same, {SIZES[-1]} against {SIZES[0]} nodes", f"x {ratio:.2f}", "<= x 1.5"))
    with tempfile.TemporaryDirectory() as folder:
        writer = status.Writer(engine, Path(folder))
        writer.write()
        began = time.perf_counter()
        writer.write()
        written = time.perf_counter() - began
    found.append(Line(f"a write of the status (at most one a second), {SIZES[-1]} nodes", f"{written * 1e3:.0f} ms"))
    found.append(Line("lint of a file of 50 templates", f"{lint_s() * 1e3:.0f} ms", "< 100 ms"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found.append(Line(f"peak memory of all this, {SIZES[-1]} nodes", f"{peak:.0f} MB", "<= 300 MB"))
    return found


def main() -> None:
    """Print the table."""
    rows = [Line("what", "measured", "budget"), *lines()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
