"""Makes a run as the real parts leave it: a store with journal and telemetry, a run folder with workflow.json."""

import json
import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from everstep.runtime.job import records as job
from everstep.runtime.protocol.holdings import Holding, Restore
from everstep.runtime.protocol.rounds import Member, Round
from everstep.runtime.store import open_store

BEGIN = 1_780_000_000.0
UID = "5b1c9d2e-7f30-4c11-9a52-0a4c2f6b7d01"


@dataclass
class MadeRun:
    """Where the run lies."""

    store: Path
    folder: Path
    name: str = "llama-finetune-x7k2"
    uid: str = UID


def round_of(number: int, nodes: tuple[str, ...], iteration: int | None) -> Round:
    """A round of those nodes, restored from the first one's memory."""
    restore = None
    if iteration is not None:
        restore = Restore(number - 1, iteration, (Holding(number - 1, iteration, node=nodes[0]),), "newest whole")
    members = tuple(Member(node, f"local-{index}", f"127.0.0.1:{4000 + index}", 1) for index, node in enumerate(nodes))
    return Round(number, {"worker": members}, "127.0.0.1", 29500, restore, f"all {len(nodes)} live nodes joined")


def journal() -> list[job.Record]:
    """Two nodes, a worker killed at iteration 81, a node lost at 140, replaced; 200 iterations."""
    both, later = ("worker-0-0", "worker-1-0"), ("worker-0-0", "worker-1-1")
    t = BEGIN + 16
    return [
        job.MasterClaimed(time=t, epoch=1, address="127.0.0.1:5000"),
        job.RoundFormed(time=t + 5.0, round=round_of(1, both, None)),
        job.WorkerFaulted(
            time=t + 48.85, node="worker-1-0", round=1, rank=1, local_rank=0, exit_code=-9, iteration=81,
            reason=job.Reason.KILLED, died=t + 48.8, failed=(1,),
        ),
        job.RoundBroken(
            time=t + 48.86, round=1, reason=job.Reason.KILLED, detail="rank 1: SIGKILL", node="worker-1-0", iteration=81
        ),
        job.RoundFormed(time=t + 49.0, round=round_of(2, both, 81)),
        job.Committed(time=t + 60.0, round=2, iteration=100, key="k"),
        job.NodeLost(time=t + 80.0, node="worker-1-0", reason=job.Reason.NODE_LOST),
        job.RoundBroken(
            time=t + 80.0, round=2, reason=job.Reason.NODE_LOST, detail="agent gone", node="worker-1-0", iteration=140
        ),
        job.RoundFormed(time=t + 86.0, round=round_of(3, later, 139)),
        job.Committed(time=t + 118.0, round=3, iteration=200, key="k"),
        job.JobEnded(time=t + 119.0, result=job.JobResult.SUCCEEDED, reason="every member finished", iteration=200),
    ]  # fmt: skip


def telemetry() -> list[dict[str, Any]]:
    """Half a second an iteration, in the rounds of `journal`."""
    noise = random.Random(7)
    lines = []
    for number, first, last, begin in (
        (1, 1, 81, BEGIN + 26.0),
        (2, 82, 140, BEGIN + 65.3),
        (3, 140, 200, BEGIN + 104),
    ):
        time = begin
        for iteration in range(first, last + 1):
            seconds = 0.48 * noise.uniform(0.9, 1.08) if number == 1 else 0.47 * noise.uniform(0.95, 1.05) * 0.98
            if number == 2:
                seconds *= 1.11
            time += seconds + 0.002
            lines.append(
                {
                    "v": 1, "time": round(time, 4), "node": "worker-0-0", "round": number, "iteration": iteration,
                    "rank": 0, "loss": 3.4 + 5.6 * math.exp(-iteration / 45) + noise.gauss(0, 0.05), "tokens": 8192,
                    "consumed": iteration * 32, "seconds": round(seconds, 4), "stall_s": 0.004,
                }
            )  # fmt: skip
    return lines


def _stamp(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z")


def workflow(times: dict[str, tuple[str, float, float | None]], phase: str, name: str) -> dict[str, Any]:
    """Argo's Workflow: the DAG of the main pipeline, with nodes for the tasks in `times` (phase, begin, end)."""
    depends = {"corpus": "", "tokenize": "corpus", "check": "", "train": "tokenize && check", "evaluate": "train"}
    template = {"tokenize": "preprocess"}
    nodes: dict[str, Any] = {name: {"id": name, "name": name, "displayName": name, "type": "DAG", "phase": phase}}
    for task, (state, begin, end) in times.items():
        full = f"{name}.onExit" if task == "report" else f"{name}.{task}"
        nodes[f"{name}-{task}"] = {
            "id": f"{name}-{task}", "name": full, "displayName": full if task == "report" else task, "type": "Pod",
            "phase": state, "templateName": template.get(task, task), "boundaryID": "" if task == "report" else name,
            "startedAt": _stamp(BEGIN + begin), "finishedAt": _stamp(BEGIN + end) if end is not None else None,
            "message": "main: Error (exit code 1)" if state == "Failed" else "",
            "outputs": {"exitCode": "1" if state == "Failed" else "0"},
        }  # fmt: skip
    tasks = [{"name": task, "template": template.get(task, task), "depends": after} for task, after in depends.items()]
    return {
        "metadata": {"name": name, "uid": UID},
        "spec": {"entrypoint": "main", "onExit": "report", "templates": [{"name": "main", "dag": {"tasks": tasks}}]},
        "status": {"phase": phase, "nodes": nodes},
    }


SUMMARIES = {
    "corpus": ("214 documents  11.8 MB", {"documents": 214, "bytes": 11_812_443, "duplicates": 3}),
    "preprocess": ("3.9 M tokens  13.1 MB/s", {"tokens": 3_912_331, "vocab_size": 8192, "tokenizer": "byte-level BPE"}),
    "check": ("2 nodes healthy", {"pairs": [["local-0", "local-1"]], "matmul_s": 0.41, "all_reduce_s": 0.22}),
    "train": ("200 iterations  loss 3.47  2 nodes", {"iterations": 200, "loss": 3.4712, "parameters": 5_120_000}),
    "evaluate": (
        "perplexity 31.2 (untrained: 8102)",
        {
            "perplexity": 31.2,
            "untrained": 8102.4,
            "sample": "def close(self):\n    # the file <b>is</b> closed once\n" * 4,
        },
    ),
}


def full_run(place: Path) -> MadeRun:
    """A run that succeeded after two restarts."""
    maker_run = MadeRun(place / "store", place / "run")
    times = {
        "corpus": ("Succeeded", 0.0, 1.2), "tokenize": ("Succeeded", 1.3, 15.0), "check": ("Succeeded", 0.1, 4.0),
        "train": ("Succeeded", 15.5, 136.0), "evaluate": ("Succeeded", 136.2, 150.0),
        "report": ("Running", 150.2, None),
    }  # fmt: skip
    write(maker_run, workflow(times, "Running", maker_run.name), journal(), telemetry(), list(SUMMARIES))
    return maker_run


def failed_run(place: Path) -> MadeRun:
    """The training's own error in iteration 12."""
    maker_run = MadeRun(place / "store", place / "run", name="llama-finetune-bad1")
    times = {
        "corpus": ("Succeeded", 0.0, 1.2), "tokenize": ("Succeeded", 1.3, 15.0), "check": ("Succeeded", 0.1, 4.0),
        "train": ("Failed", 15.5, 40.0), "evaluate": ("Omitted", 40.0, 40.0), "report": ("Running", 40.2, None),
    }  # fmt: skip
    error = "Traceback (most recent call last):\n  ...\nValueError: <script>alert('x')</script>"
    records = [
        *journal()[:2],
        job.JobEnded(
            time=BEGIN + 39, result=job.JobResult.FAILED, reason="rank 1: user error at iteration 12, again",
            error=error, exit_code=1,
        ),
    ]  # fmt: skip
    write(
        maker_run,
        workflow(times, "Failed", maker_run.name),
        records,
        telemetry()[:12],
        ["corpus", "preprocess", "check"],
    )
    logs = maker_run.folder / "logs"
    logs.mkdir()
    (logs / f"{maker_run.name}-train.log").write_text("iteration 11  loss 7.8\niteration 12  loss 7.6\n" + error + "\n")
    return maker_run


def write(
    maker_run: MadeRun,
    manifest: dict[str, Any],
    records: list[job.Record],
    lines: list[dict[str, Any]],
    steps: list[str],
) -> None:
    """Everything where the real parts would put it."""
    maker_run.folder.mkdir(parents=True)
    (maker_run.folder / "workflow.json").write_text(json.dumps(manifest))
    store = open_store(str(maker_run.store))
    for number, record in enumerate(records, 1):
        store.put(f"jobs/{UID}-train/journal/{number:06d}", msgspec.json.encode(record) + b"\n")
    text = "".join(json.dumps(line) + "\n" for line in lines)
    store.put(f"jobs/{UID}-train/telemetry/000001-000001.jsonl", text.encode())
    for step in steps:
        summary, facts = SUMMARIES[step]
        step_summary = {"step": step, "summary": summary, "facts": facts, "seconds": 1.0}
        store.put(f"runs/{maker_run.name}/steps/{step}.json", json.dumps(step_summary).encode())
