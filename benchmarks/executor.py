"""The embedded executor's own cost: `python -m benchmarks.executor`. Its steps do nothing.

Overhead of a step = its time in the executor minus that of a bare fork and exec of the same command in the same run.
Engine time is the pure engine's, without processes and files: per node it must not grow with the number of nodes.
"""

import gc
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.acceptance import Line
from benchmarks.memory import peak_bytes
from everstep.runtime.workflow import RunOptions, parse, run_workflow
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import PodEnded, PodStarted, RunCreated
from everstep.runtime.workflow.engine.nodes import Phase
from everstep.runtime.workflow.lint.lint import findings
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.yaml_source import read_text
from everstep.runtime.workflow.run import status

STEPS = 200
SIZES = (1000, 2000, 5000)
FLAT = 1.5
"""The largest allowed ratio of the time per node at the largest size to that at the smallest."""
STEP_S, LINT_S, WRITES, PEAK_MB = 0.05, 0.1, 0.03, 300
"""Budgets: seconds per step, seconds per lint, share of the time, MB."""
COMMAND = ["true"]


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


def groups(count: int) -> dict[str, Any]:
    """Steps one after the other, each with its group."""
    return workflow([{"name": "main", "steps": [[{"name": f"s{i}", "template": "noop"}] for i in range(count // 2)]}])


def calls(count: int) -> dict[str, Any]:
    """Items that each call a template of steps with an argument."""
    task = {"name": "t", "template": "one", "withSequence": {"count": str(count // 3)}}
    task["arguments"] = {"parameters": [{"name": "x", "value": "{{item}}"}]}
    template = {
        "name": "one",
        "inputs": {"parameters": [{"name": "x"}]},
        "steps": [[{"name": "a", "template": "noop"}]],
    }
    return workflow([{"name": "main", "dag": {"tasks": [task]}}, template])


def hooks(count: int) -> dict[str, Any]:
    """Tasks that each have an exit hook."""
    hooks = {"exit": {"template": "noop"}}
    tasks = [{"name": f"t{i}", "template": "noop", "hooks": hooks} for i in range(count // 2)]
    return workflow([{"name": "main", "dag": {"tasks": tasks}}])


SHAPES = (
    ("tasks one after the other", chain),
    ("items of one task", fan),
    ("groups of steps", groups),
    ("items that call steps", calls),
    ("tasks with exit hooks", hooks),
)


def bare_s() -> float:
    """Median seconds of a fork, exec and wait of the command."""
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        subprocess.run(COMMAND, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def step_s(manifest: dict[str, Any]) -> tuple[float, float]:
    """(median seconds between two ends, average seconds per step) of a run."""
    with tempfile.TemporaryDirectory() as runs:
        began = time.perf_counter()
        end_times: list[float] = []

        def note_ends(engine: Engine, folder: Path) -> None:
            if engine.state.finished:
                end_times[:] = sorted(
                    node.finished for node in engine.state.nodes.values() if node.template == "noop" and node.pid
                )

        run_workflow(manifest, RunOptions(name="bench", runs=Path(runs), on_change=note_ends))
        whole = time.perf_counter() - began
    return statistics.median(b - a for a, b in pairwise(end_times)), whole / STEPS


def engine_s(manifest: dict[str, Any]) -> tuple[float, Engine]:
    """(CPU seconds of the engine per node, the engine). Every pod starts and succeeds; none really runs."""
    parsed = parse(manifest)
    gc.collect()
    began = time.process_time()
    now = 1.0  # A run that ended at 0 would count as not ended.
    engine = Engine(parsed, RunCreated(now, "bench", "uid"))
    while not engine.state.finished:
        for node in engine.pending_pods():
            now += 1
            engine.handle(PodStarted(now, node.name, 7, 7))
        for node in engine.running_pods():
            now += 1
            engine.handle(PodEnded(now, node.name, 0))
    assert engine.phase is Phase.SUCCEEDED, engine.message
    return (time.process_time() - began) / len(engine.state.nodes), engine


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


def status_line(engine: Engine) -> Line:
    """The share of time spent writing `workflow.json` while something happens."""
    with tempfile.TemporaryDirectory() as folder:
        writer = status.StatusWriter(engine, Path(folder))
        for _ in range(2):  # The second write finds the nodes' text cached, as all but the first do.
            began = time.perf_counter()
            writer.write()
            write_s = time.perf_counter() - began
    share = write_s / writer.every_s
    measured_text = f"{share:.1%}: {write_s * 1e3:.0f} ms every {writer.every_s:.1f} s"
    what = f"writes of the status, share of the time, {len(engine.state.nodes)} nodes"
    return Line(what, f"<= {WRITES:.0%}", measured_text, share <= WRITES)


def lines() -> Iterator[Line]:
    """All measurements. A line without a budget is for comparison."""
    bare = bare_s()
    serial, _ = step_s(chain(STEPS))
    _, eight = step_s(fan(STEPS, at_once=8))
    yield Line(f"fork and exec of `{COMMAND[0]}`, bare", "", f"{bare * 1e3:.1f} ms", True)
    for how, took in ((f"{STEPS} one after the other (median)", serial), (f"{STEPS} with 8 at a time", eight)):
        over = took - bare
        yield Line(f"overhead of a step, {how}", f"<= {STEP_S * 1e3:.0f} ms", f"{over * 1e3:.1f} ms", over <= STEP_S)
    for name, shape in SHAPES:
        per_node = {}
        for size in SIZES:
            per_node[size], engine = min((engine_s(shape(size)) for _ in range(3)), key=lambda pair: pair[0])
        each = ", ".join(f"{per_node[size] * 1e6:.0f}" for size in SIZES)
        ratio = per_node[SIZES[-1]] / per_node[SIZES[0]]
        yield Line(f"engine, us a node of {', '.join(map(str, SIZES))}: {name}", f"last <= {FLAT} x first",
                   f"{each}: x {ratio:.2f}", ratio <= FLAT)  # fmt: skip
    yield status_line(engine)
    took = lint_s()
    yield Line("lint of a file of 50 templates", f"< {LINT_S * 1e3:.0f} ms", f"{took * 1e3:.0f} ms", took < LINT_S)
    peak = peak_bytes() / 2**20
    yield Line(f"peak memory, {SIZES[-1]} nodes", f"<= {PEAK_MB} MB", f"{peak:.0f} MB", peak <= PEAK_MB)


def main() -> None:
    """Print the table."""
    result_table = Table("what", "budget", "measured")
    for line in lines():
        result_table.add_row(line.promise, line.wanted, line.measured)
    Console().print(result_table)


if __name__ == "__main__":
    main()
