"""`everstep scale RUN[/STEP] --nodes N`: change how many nodes of a running job train together.

On this machine it asks the job's master; on a cluster it edits the ConfigMap that the master reads.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Annotated

from everstep.cli.find_job import find, find_on_cluster, newest_master
from everstep.errors import BadInput
from everstep.flags import Flag, add_action

EXAMPLES = "examples: everstep scale llama-finetune-x7k2 --nodes 1; everstep scale RUN --nodes 4 -n ml"


@dataclass(frozen=True)
class Scale:
    """Change the number of nodes of a running job."""

    job: Annotated[str, Flag(metavar="RUN[/STEP]", is_positional=True)]
    """A run, and its train step if it has several."""
    nodes: int
    """Number of nodes, between the job's minimum and maximum."""
    role: str = "worker"
    """Role of the nodes."""
    timeout: Annotated[int, Flag(metavar="SECONDS")] = 0
    """Give up new nodes that have not joined for this long: the job keeps the number that it has then. 0: as the job
    spec's scaleOutTimeout says, by default never."""
    namespace: Annotated[str, Flag("-n")] = ""
    """Namespace of the run, if it is on a cluster (kube context)."""
    runs: Path = Path("runs")
    """Directory of the run folders."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Scale, run)
    parser.epilog = EXAMPLES


def run(flags: Scale) -> int:
    """Resize the job; returns the exit code. Raises BadInput."""
    name, nodes, role = flags.job, flags.nodes, flags.role
    if flags.timeout < 0:
        raise BadInput(f"--timeout {flags.timeout}: give seconds, or 0 for the job spec's")
    if flags.namespace:
        _edit(name, flags.namespace, role, nodes, flags.timeout)
        print(f"{name}: {nodes} {role} nodes requested; the step's log shows what follows", file=sys.stderr)
        return 0
    job = find(flags.runs, name)
    if termination := job.state.ended:
        raise BadInput(f"{name}: its training is over ({termination.result.value}: {termination.reason})")
    _post(name, newest_master(job, name), job.token, {"nodes": nodes, "role": role, "timeout_s": flags.timeout})
    print(f"{name}: {nodes} {role} nodes wanted", file=sys.stderr)
    return 0


def _edit(name: str, namespace: str, role: str, nodes: int, timeout_s: int) -> None:
    """Write the size into the ConfigMap that the job's master reads. Raises BadInput."""
    from everstep.runtime.platform.kubernetes.sizes import (
        KEY,
        STAMP_KEY,
        TIMEOUT_KEY,
        bounds_of,
        format_sizes,
        parse_sizes,
    )
    from everstep.runtime.submission.route import ApiError

    try:
        job = find_on_cluster(namespace, name)
        sizes = parse_sizes(job.sizes)
        if role not in sizes:
            raise BadInput(f"{name}: role: the job has no {role!r}, only {', '.join(sizes)}")
        bounds = bounds_of(job.sizes, role)
        if bounds and not bounds[0] <= nodes <= bounds[1]:
            raise BadInput(f"{name}: --nodes {nodes}: {role} has at least {bounds[0]} and at most {bounds[1]} nodes")
        timeouts = {**parse_sizes(job.sizes, TIMEOUT_KEY), role: timeout_s}
        stamps = {**parse_sizes(job.sizes, STAMP_KEY), role: int(time())}
        numbers = {KEY: {**sizes, role: nodes}, TIMEOUT_KEY: timeouts, STAMP_KEY: stamps}
        data = {key: format_sizes(by_role) for key, by_role in numbers.items()}
        job.route.edit_config_map(job.sizes["metadata"]["name"], data)
    except (ApiError, ValueError) as error:
        raise BadInput(f"{name}: {error}") from None


def _post(name: str, master: str, token: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(
        f"http://{master}/v1/scale",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30):
            return
    except urllib.error.HTTPError as error:
        raise BadInput(f"{name}: refused: {_reason(error.read())}") from None
    except OSError as error:
        why = getattr(error, "reason", error)
        mend = f"`everstep workflow resume {name.partition('/')[0]}` resumes the run; then scale it"
        raise BadInput(
            f"{name}: no master answers at {master} ({why}); its nodes may continue without it; {mend}"
        ) from None


def _reason(answer: bytes) -> str:
    """The error in a master's answer; if there is none, its first words."""
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return " ".join(answer.decode(errors="replace").split())[:200]
