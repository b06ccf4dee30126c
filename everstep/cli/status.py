"""`everstep status RUN[/STEP]`: how a job is doing, from its journal alone; its master may be dead.

The journal is read from its newest snapshot on, so the length of the job does not matter. On a cluster the job is found
through its Workflow. If pods of its steps sit on a dead machine, the status says so, because Argo does not.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from everstep.cli.find_job import IN_STORE, find, find_on_cluster, read_started, run_end, store_of
from everstep.errors import BadInput
from everstep.flags import Flag, add_action
from everstep.runtime.display.terminal import as_text_lines

CLEAR = "\x1b[2J\x1b[H"
WATCH_EVERY_S = 2.0
ENDS = ("Succeeded", "Failed")
"""Conditions after which nothing changes any more."""


@dataclass(frozen=True)
class Status:
    """Conditions, restarts, nodes and checkpoint of a job."""

    job: Annotated[str, Flag(metavar="RUN[/STEP]", is_positional=True)]
    """A run, and its train step if it has several; or what a store has of a job: STORE/jobs/JOB, also s3://..."""
    output: Annotated[Literal["text", "json"], Flag("-o")] = "text"
    """For people, or programs."""
    watch: bool = False
    """Show it again every two seconds, until Ctrl-C or the job's end."""
    namespace: Annotated[str, Flag("-n")] = ""
    """Namespace of the run, if it is on a cluster (kube context)."""
    runs: Path = Path("runs")
    """Directory of the run folders."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Status, run)
    parser.epilog = (
        "examples: everstep status llama-finetune-x7k2 -o json; everstep status RUN -n ml; "
        "everstep status s3://bucket/prefix/jobs/JOB --watch"
    )


def run(flags: Status) -> int:
    """Print the status; returns the exit code. Raises BadInput."""
    if flags.namespace and _stored_job(flags.job):
        raise BadInput(f"{flags.job} names the job of a store already: leave --namespace out")
    while True:
        status = read_on_cluster(flags.namespace, flags.job) if flags.namespace else read(flags.runs, flags.job)
        output = json.dumps(status, indent=1) if flags.output == "json" else text(status)
        print(CLEAR + output if flags.watch and sys.stdout.isatty() else output, flush=True)
        if not flags.watch or status["conditions"][-1]["type"] in ENDS or status.get("runEnded"):
            return 0
        try:
            time.sleep(WATCH_EVERY_S)
        except KeyboardInterrupt:
            return 0


def read(runs: Path, name: str) -> dict[str, Any]:
    """The status of a job (`everstep.runtime.job.status`), with its name. Raises BadInput."""
    from everstep.runtime.job.status import job_status

    if stored := _stored_job(name):
        store, job_name = stored
        hint = f"no job of that name there; `everstep checkpoint ls {store}` shows those that have checkpoints"
        _, state = read_started(store, job_name, name, unknown=hint)
        return {"job": job_name, **job_status(state)}
    job = find(runs, name)
    ended_at = "" if job.state.ended else run_end(runs / name.partition("/")[0])
    return {"job": job.job, **job_status(job.state), "runEnded": ended_at}


def _stored_job(name: str) -> tuple[str, str] | None:
    """(Store, job) of STORE/jobs/JOB; None: it is the name of a run."""
    match = IN_STORE.fullmatch(name)
    return (match["store"], match["name"]) if match and match["kind"] == "jobs" else None


def read_on_cluster(namespace: str, name: str) -> dict[str, Any]:
    """The status of a job on a cluster, with the steps' pods that nobody will end.

    This environment's variables give access to the store. Raises BadInput.
    """
    from everstep.runtime.job.status import job_status
    from everstep.runtime.submission.overdue_pods import hosts_of, overdue_pods, run_selector, silent_since
    from everstep.runtime.submission.route import ApiError

    try:
        job = find_on_cluster(namespace, name)
        pods = job.route.pods(run_selector(name.partition("/")[0]))
        silent = {node["metadata"]["name"]: silent_since(node) for node in job.route.nodes(hosts_of(pods))}
        late = [{**pod, "mend": _mend(pod, job.route.namespace)} for pod in overdue_pods(pods, silent, time.time())]
    except ApiError as error:
        raise BadInput(f"{name}: {error}") from None
    try:
        _, state = read_started(store_of(job.workflow), job.job, name)
    except BadInput as error:
        raise BadInput("; ".join([str(error), *map(_overdue, late)])) from None
    return {"job": job.job, **job_status(state), "overduePods": late}


def text(status: dict[str, Any]) -> str:
    """The status as text for people."""
    now, round_, checkpoint = status["conditions"][-1], status["round"], status["checkpoint"]
    phase = f"{now['type']} since {now['lastTransitionTime']}"
    if status.get("runEnded"):
        phase = f"ended with its run at {status['runEnded']}"
    lines = [f"{status['job']}: {phase}", f"  {status['reason']}"]
    if round_:
        start = f"from iteration {round_['restored']['iteration']}" if round_["restored"] else "from the beginning"
        lines.append(f"  round {round_['number']}: {round_['nodes']} nodes, {round_['workers']} workers, {start}")
    if checkpoint:
        lines.append(f"  newest checkpoint: iteration {checkpoint['iteration']}  {checkpoint['manifest']}")
    faults = ", ".join(f"{role} {count}" for role, count in status["RestartCount"].items() if count)
    restarts = round_["number"] - 1 if round_ else 0
    lines.append(f"  restarts: {restarts or 'none'}" + (f" (by faults that count: {faults})" if faults else ""))
    lines += [f"  slow: {detail}" for detail in status["slow"]]
    lines += [f"  given up: {place} ({why})" for place, why in status["givenUp"].items()]
    lines += [f"  {_overdue(pod)}" for pod in status.get("overduePods", ())]
    if status["avoidedHosts"]:
        lines.append(f"  avoided hosts: {', '.join(status['avoidedHosts'])}")
    conditions = [
        [c["type"], c["status"], c["lastTransitionTime"], c["reason"], c["message"]] for c in status["conditions"]
    ]
    nodes = [[n["name"], n["host"], n["ip"] or "-", _phase(n), _ranks(n["ranks"])] for n in status["nodes"]]
    lines += ["", *_table(["CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"], conditions)]
    lines += ["", *_table(["NODE", "HOST", "IP", "PHASE", "RANKS"], nodes)]
    if status["error"]:
        lines += ["", status["error"].rstrip()]
    return as_text_lines("\n".join(lines))


def _mend(pod: dict[str, str], namespace: str) -> str:
    """Fenced by the journal: a step that lives on unseen can do no harm."""
    return f"kubectl delete pod {pod['name']} -n {namespace} --force --grace-period=0"


def _overdue(pod: dict[str, str]) -> str:
    return f"the step's pod {pod['name']} {pod['reason']}. Argo waits. If that machine is off for good: {pod['mend']}"


def _phase(node: dict[str, Any]) -> str:
    marks = [f"leaving: {node['leaving']}"] if node["leaving"] else []
    marks += ["straggler"] if node["straggler"] else []
    return node["phase"] + (f" ({', '.join(marks)})" if marks else "")


def _ranks(ranks: list[int] | None) -> str:
    if ranks is None:
        return "-"
    return str(ranks[0]) if ranks[0] == ranks[1] else f"{ranks[0]}-{ranks[1]}"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    every = [head, *rows]
    widths = [max(len(row[column]) for row in every) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in every]
